// The conditions of the filter, for rows that are here: a bundle has no database.

import { chips } from "./filter";
import { isCut } from "./cells";

export type Values = Record<string, unknown>;

const NAME = String.raw`(?:"((?:[^"]|"")+)"|([A-Za-z_][A-Za-z0-9_]*))`;
const SUBJECTS: [RegExp, (value: unknown) => unknown][] = [
  [new RegExp(`^array_to_string\\(${NAME}, ' '\\)`, "i"), (value) => (Array.isArray(value) ? value.join(" ") : value)],
  [new RegExp(`^coalesce\\(array_length\\(${NAME}\\), 0\\)`, "i"), (value) => (Array.isArray(value) ? value.length : 0)],
  [new RegExp(`^${NAME}`), (value) => value],
];
const COMPARED = /^\s*(<=|>=|<>|!=|=|<|>|ilike\b|like\b)\s*('(?:[^']|'')*'|-?[0-9.]+(?:e[-+]?[0-9]+)?|true|false)$/i;

/** What is no condition of one column and one value. */
export class Unknown extends Error {}

function literal(written: string): unknown {
  if (written.startsWith("'")) return written.slice(1, -1).replaceAll("''", "'");
  if (/^(true|false)$/i.test(written)) return written.toLowerCase() === "true";
  return Number(written);
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

function compares(operator: string, given: unknown): (value: unknown) => boolean {
  if (/like/i.test(operator)) {
    const found = pattern(String(given), operator.toLowerCase() === "ilike" ? "i" : "");
    return (value) => found.test(String(value));
  }
  const order = (value: unknown): number => {
    if (typeof given === "string") return String(value) < given ? -1 : String(value) > given ? 1 : 0;
    return Number(value) - Number(given);
  };
  switch (operator) {
    case "=":
      return (value) => order(value) === 0;
    case "<":
      return (value) => order(value) < 0;
    case "<=":
      return (value) => order(value) <= 0;
    case ">":
      return (value) => order(value) > 0;
    case ">=":
      return (value) => order(value) >= 0;
    default:
      return (value) => order(value) !== 0;
  }
}

/** A condition of one column. */
function one(chip: string, columns: string[]): (row: Values) => boolean {
  const text = chip.trim();
  const not = /^not\s+/i.exec(text);
  const rest = not ? text.slice(not[0].length) : text;
  for (const [subject, take] of SUBJECTS) {
    const found = subject.exec(rest);
    const written = found?.[1]?.replaceAll('""', '"') ?? found?.[2];
    if (!found || written === undefined) continue;
    const name = columns.includes(written) ? written : written.toLowerCase();
    if (!columns.includes(name)) throw new Unknown(`there is no column ${written}`);
    const after = rest.slice(found[0].length);
    if (after.trim() === "") return (row) => (typeof row[name] === "boolean" ? row[name] !== (not !== null) : false);
    const empty = /^\s+is\s+(not\s+)?null$/i.exec(after);
    if (empty && !not) return (row) => (row[name] === null || row[name] === undefined) === (empty[1] === undefined);
    const compared = COMPARED.exec(after);
    if (!compared?.[1] || compared[2] === undefined || not) continue;
    const holds = compares(compared[1], literal(compared[2]));
    return (row) => {
      const value = take(row[name]);
      if (value === null || value === undefined) return false;
      if (!isCut(value)) return holds(value);
      if (holds(value.cut)) return true;
      throw new Unknown(`texts of ${name} are cut in a bundle: whether they match is not known`);
    };
  }
  throw new Unknown(`a bundle knows only conditions of one column and a value, joined by AND: not ${text}`);
}

/** Returns whether a row fits a condition. */
export function predicate(sql: string, columns: string[]): (row: Values) => boolean {
  const all = chips(sql).map((chip) => one(chip, columns));
  return (row) => all.every((holds) => holds(row));
}

/** Compares rows by columns, `-` before one: the largest first. What is empty stands last. */
export function order(keys: string[], columns: string[]): (one: Values, other: Values) => number {
  const parts = keys.map((key) => {
    const name = key.replace(/^-/, "").replace(/^"(.*)"$/, "$1");
    if (!columns.includes(name)) throw new Unknown(`a bundle sorts by columns: there is no column ${name}`);
    return { name, sign: key.startsWith("-") ? -1 : 1 };
  });
  return (first, second) => {
    for (const { name, sign } of parts) {
      const [left, right] = [first[name] ?? null, second[name] ?? null];
      if (left === right) continue;
      if (left === null) return 1;
      if (right === null) return -1;
      const [a, b] = typeof left === "number" || typeof left === "boolean" ? [Number(left), Number(right)] : [text(left), text(right)];
      if (a !== b) return a < b ? -sign : sign;
    }
    return 0;
  };
}

function text(value: unknown): string {
  if (isCut(value)) return String(value.cut);
  return typeof value === "string" ? value : JSON.stringify(value);
}
