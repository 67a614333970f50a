/** Enums of the columns: a number is a place in these lists (graph/columns.py). */

export const KINDS = ["input", "op", "output"] as const;
export const PHASES = ["forward", "backward", "recompute", "optimizer", "other"] as const;
export const ROLES = [
  "input",
  "parameter",
  "buffer",
  "constant",
  "activation",
  "gradient",
  "optimizer state",
  "temporary",
] as const;
