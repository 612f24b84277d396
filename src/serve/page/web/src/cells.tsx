// How a value of a table is shown.

import type { ComponentChildren, JSX } from "preact";
import type { Cell, Column, Cut } from "./api";
import { number, visible } from "./format";

export function isCut(value: unknown): value is Cut {
  return typeof value === "object" && value !== null && "cut" in value && "length" in value;
}

export function isNumeric(column: Column | undefined): boolean {
  return column !== undefined && /number|^U?Int|^Float|^Decimal/.test(column.type) && !column.type.startsWith("list");
}

/** The text of a cell. */
export function text(cell: Cell | undefined): string {
  if (cell === null || cell === undefined) return "";
  if (typeof cell === "number") return number(cell);
  if (typeof cell === "boolean") return cell ? "yes" : "no";
  if (typeof cell === "string") return visible(cell);
  return `${visible(String(cell.cut))}…`;
}

export function CellView({ cell, column }: { cell: Cell | undefined; column?: Column | undefined }): JSX.Element {
  if (cell === null || cell === undefined) return <span class="null">–</span>;
  if (typeof cell === "boolean") return <span class={cell ? "yes" : "no"}>{cell ? "✓ yes" : "✕ no"}</span>;
  if (typeof cell === "string" && column?.type === "list of text") {
    try {
      return <>{visible((JSON.parse(cell) as unknown[]).map(String).join(" | "))}</>;
    } catch {
      return <>{text(cell)}</>;
    }
  }
  return <>{text(cell)}</>;
}

/** Marks the parts of a text that equal one of `words`, whatever their case. */
export function marked(whole: string, words: string[]): ComponentChildren {
  const wanted = words.map((word) => word.trim()).filter((word) => word.length > 1);
  if (wanted.length === 0) return whole;
  const escaped = wanted.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).sort((a, b) => b.length - a.length);
  const parts = whole.split(new RegExp(`(${escaped.join("|")})`, "gi"));
  return parts.map((part, place) => (place % 2 === 1 ? <mark key={place}>{part}</mark> : part));
}
