// Numbers, times and values as text.

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "" : value.toLocaleString("en-US");
}

/** The calls of models: those of tools and functions are counted apart. */
export function modelCalls(paid: { calls?: number; service_calls?: number }): string {
  const calls = (paid.calls ?? 0) - (paid.service_calls ?? 0);
  return calls > 0 ? count(calls) : "";
}

export function number(value: number): string {
  if (Number.isInteger(value)) return value.toLocaleString("en-US", { useGrouping: Math.abs(value) >= 10000 });
  const size = Math.abs(value);
  return size >= 1000 || size < 0.001 ? value.toPrecision(4) : String(Number(value.toFixed(4)));
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (value >= 1024 && place + 1 < units.length) {
    value /= 1024;
    place += 1;
  }
  return `${place === 0 ? value : value.toFixed(1)} ${units[place]}`;
}

export function seconds(value: number): string {
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const two = (part: number): string => String(Math.floor(part)).padStart(2, "0");
  if (value < 3600) return `${Math.floor(value / 60)}:${two(value % 60)} min`;
  return `${Math.floor(value / 3600)}:${two((value / 60) % 60)} h`;
}

/** The day and the time of a moment (Unix, seconds), in the reader's time zone. */
export function moment(value: number | null | undefined): string {
  if (!value) return "";
  const date = new Date(value * 1000);
  const two = (part: number): string => String(part).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function money(value: number | undefined, currency: string | undefined): string {
  return value ? `${value.toFixed(value < 1 ? 4 : 2)} ${currency ?? ""}`.trim() : "";
}

/** A value of a param as it would be written. */
export function written(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Shows characters that change how a line reads: direction marks and controls. */
export function visible(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (mark) => {
    return `\u27e8${mark.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}
