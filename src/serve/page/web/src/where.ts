// The conditions of the filter, for rows that are here: a bundle has no database.

import { chips } from "./filter";
import type { Column } from "./api";
import { isCut, isNumeric } from "./cells";

export type Values = Record<string, unknown>;

const NAME = String.raw`(?:"((?:[^"]|"")+)"|([A-Za-z_][A-Za-z0-9_]*))`;
type Kind = "number" | "text" | "boolean" | "other";

function kindOf(column: Column): Kind {
  if (isNumeric(column)) return "number";
  if (column.type === "yes or no") return "boolean";
  return column.type === "text" ? "text" : "other";
}

/** What a condition may compare: a column, the texts of a list, the length of a list. */
const SUBJECTS: { written: RegExp; kind: Kind | null; take: (value: unknown) => unknown }[] = [
  {
    written: new RegExp(`^array_to_string\\(${NAME}, ' '\\)`, "i"),
    kind: "text",
    take: (value) => (Array.isArray(value) ? value.filter((item) => item !== null).join(" ") : value),
  },
  {
    written: new RegExp(`^coalesce\\(array_length\\(${NAME}\\), 0\\)`, "i"),
    kind: "number",
    take: (value) => (isCut(value) ? value.length : Array.isArray(value) ? value.length : 0),
  },
  { written: new RegExp(`^${NAME}`), kind: null, take: (value) => value },
];
const COMPARED = /^\s*(<=|>=|<>|!=|=|<|>|ilike\b|like\b)\s*('(?:[^']|'')*'|-?[0-9.]+(?:e[-+]?[0-9]+)?|true|false)$/i;

/** What is no condition of one column and one value. */
export class Unknown extends Error {}

/** A number of a row or of a condition. Those that JSON has not, or that this language would round, are texts. */
function numeric(written: unknown): number | bigint {
  if (typeof written !== "string") return Number(written);
  if (/^-?inf$/.test(written)) return written === "inf" ? Infinity : -Infinity;
  return /^-?[0-9]+$/.test(written) ? BigInt(written) : Number(written);
}

/** The order of numbers in the database: NaN is the largest. */
function ofNumbers(one: number | bigint, other: number | bigint): number {
  if (Number.isNaN(one) || Number.isNaN(other)) return Number(Number.isNaN(one)) - Number(Number.isNaN(other));
  return one < other ? -1 : one > other ? 1 : 0;
}

/** The order of texts in the database: by characters, of which this language splits some in two. */
function ofTexts(one: string, other: string): number {
  for (let place = 0; place < Math.min(one.length, other.length); place += 1) {
    if (one[place] !== other[place]) return (one.codePointAt(place) ?? 0) - (other.codePointAt(place) ?? 0);
  }
  return one.length - other.length;
}

function compare(kind: Kind, one: unknown, other: unknown): number {
  if (kind === "text") return ofTexts(String(one), String(other));
  return ofNumbers(numeric(one), numeric(other));
}

/** A pattern of LIKE as a regular expression. */
function pattern(like: string, flags: string): RegExp {
  let text = "";
  for (let place = 0; place < like.length; place += 1) {
    let letter = like[place] ?? "";
    if (letter === "%") text += "[^]*";
    else if (letter === "_") text += "[^]";
    else {
      if (letter === "\\" && place + 1 < like.length) letter = like[(place += 1)] ?? "";
      text += letter.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
    }
  }
  return new RegExp(`^${text}$`, `u${flags}`);
}

/** What a literal is, and its value. */
function literal(written: string): { kind: Kind; value: unknown } {
  if (written.startsWith("'")) return { kind: "text", value: written.slice(1, -1).replaceAll("''", "'") };
  if (/^(true|false)$/i.test(written)) return { kind: "boolean", value: written.toLowerCase() === "true" };
  return { kind: "number", value: written };
}

function compares(operator: string, kind: Kind, given: unknown): (value: unknown) => boolean {
  if (/like/i.test(operator)) {
    const found = pattern(String(given), operator.toLowerCase() === "ilike" ? "i" : "");
    return (value) => found.test(String(value));
  }
  switch (operator) {
    case "=":
      return (value) => compare(kind, value, given) === 0;
    case "<":
      return (value) => compare(kind, value, given) < 0;
    case "<=":
      return (value) => compare(kind, value, given) <= 0;
    case ">":
      return (value) => compare(kind, value, given) > 0;
    case ">=":
      return (value) => compare(kind, value, given) >= 0;
    default:
      return (value) => compare(kind, value, given) !== 0;
  }
}

/** A condition of one column. */
function one(chip: string, columns: Column[]): (row: Values) => boolean {
  const text = chip.trim();
  const not = /^not\s+/i.exec(text);
  const rest = not ? text.slice(not[0].length) : text;
  for (const subject of SUBJECTS) {
    const found = subject.written.exec(rest);
    const written = found?.[1]?.replaceAll('""', '"') ?? found?.[2];
    if (!found || written === undefined) continue;
    const column = columns.find((one) => one.name === written) ?? columns.find((one) => one.name === written.toLowerCase());
    if (!column) throw new Unknown(`there is no column ${written}`);
    const { name } = column;
    const kind = subject.kind ?? kindOf(column);
    const after = rest.slice(found[0].length);
    if (after.trim() === "" && kind === "boolean") return (row) => row[name] === (not === null);
    const empty = /^\s+is\s+(not\s+)?null$/i.exec(after);
    if (empty && !not) return (row) => ((row[name] ?? null) === null) === (empty[1] === undefined);
    const compared = COMPARED.exec(after);
    if (!compared?.[1] || compared[2] === undefined || not) continue;
    const given = literal(compared[2]);
    // The database converts one of two kinds; here that is not known.
    if (given.kind !== kind || (/like/i.test(compared[1]) && kind !== "text")) continue;
    const holds = compares(compared[1], kind, given.value);
    return (row) => {
      const value = subject.take(row[name] ?? null);
      if (value === null) return false;
      if (!isCut(value)) return holds(value);
      if (/like/i.test(compared[1] ?? "") && holds(value.cut)) return true;
      throw new Unknown(`texts of ${name} are cut in a bundle: whether they match is not known`);
    };
  }
  throw new Unknown(`a bundle knows only conditions of one column and a value of its type, joined by AND: not ${text}`);
}

/** Returns whether a row fits a condition. */
export function predicate(sql: string, columns: Column[]): (row: Values) => boolean {
  const all = chips(sql).map((chip) => one(chip, columns));
  return (row) => all.every((holds) => holds(row));
}

/** Compares rows by columns, `-` before one: the largest first. What is empty stands last. */
export function order(keys: string[], columns: Column[]): (one: Values, other: Values) => number {
  const parts = keys.map((key) => {
    const written = key.replace(/^-/, "").replace(/^"(.*)"$/, "$1");
    const column = columns.find((one) => one.name === written);
    const kind = column ? kindOf(column) : "other";
    if (kind === "other") throw new Unknown(`a bundle sorts by columns of numbers, texts, yes or no: not by ${written}`);
    return { name: written, kind, sign: key.startsWith("-") ? -1 : 1 };
  });
  return (first, second) => {
    for (const { name, kind, sign } of parts) {
      const [left, right] = [plain(first[name]), plain(second[name])];
      if (left === right) continue;
      if (left === null) return 1;
      if (right === null) return -1;
      const found = compare(kind, left, right);
      if (found !== 0) return found * sign;
    }
    return 0;
  };
}

function plain(value: unknown): unknown {
  return isCut(value) ? value.cut : (value ?? null);
}
