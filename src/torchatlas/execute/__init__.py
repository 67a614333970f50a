"""Running graphs: what was captured once is executed again."""
