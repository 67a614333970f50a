/** The text in the search box -> its parts: words, words for one field, comparisons, states.
 *
 * A measure of the user's own may have any title ("my score > 0.5"), so that the known names are looked for first.
 */

export class QueryError extends Error {}

export const FIELDS = ["op", "module", "class", "shape", "dtype", "file", "phase", "name"] as const;
export type Field = (typeof FIELDS)[number];

export type Part =
  | { kind: "words"; field: Field | null; text: string }
  | { kind: "comparison"; measure: string; sign: string; digits: string; unit: string }
  | { kind: "state"; measure: string; not: boolean; state: string };

const SPACED_UNITS = "ns|us|µs|μs|ms|s|min|[kmgt]i?b|b|[kmgtp]?flops"; // units that may stand behind a space

export function partsOf(query: string, measures: Iterable<string>): Part[] {
  const known = [...measures].filter(Boolean).sort((a, b) => b.length - a.length);
  const name = `(${[...known.map(escaped), "[^\\s<>=]+"].join("|")})`;
  const pattern = new RegExp(
    [
      "(?:[a-z]+:)?/(?:[^/\\\\]|\\\\.)+/(?=\\s|$)",
      `${name} is (not )?(nan|inf|finite|zero)(?!\\S)`,
      `${name}\\s*(>=|<=|>|<|=)\\s*(-?[\\d.]+(?:e[+-]?\\d+)?)(?:\\s+(${SPACED_UNITS})|([a-zµμ]*))(?!\\S)`,
      "\\S+",
    ].join("|"),
    "giu",
  );
  return [...query.matchAll(pattern)].map((match): Part => {
    const [text, stated, not, state, compared, sign, digits, spaced, unit] = match;
    if (stated) return { kind: "state", measure: stated, not: Boolean(not), state: state!.toLowerCase() };
    if (compared)
      return { kind: "comparison", measure: compared, sign: sign!, digits: digits!, unit: spaced ?? unit ?? "" };
    if (/^[<>=]/.test(text)) throw new QueryError(`“${text}” compares a measure with a number, such as “time > 1ms”.`);
    const colon = text.indexOf(":"),
      field = text.slice(0, Math.max(colon, 0)).toLowerCase() as Field;
    return FIELDS.includes(field)
      ? { kind: "words", field, text: text.slice(colon + 1) }
      : { kind: "words", field: null, text };
  });
}

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}
