// The address of the page: every view, row and turn has one.

import { signal } from "@preact/signals";

export interface Place {
  path: string;
  query: URLSearchParams;
}

/** Whether the page is opened as a file: then its addresses stand behind `#`. */
export const isBundle = "searchmillBundle" in globalThis;

function here(): Place {
  if (!isBundle) return { path: location.pathname, query: new URLSearchParams(location.search) };
  const [path, query] = location.hash.slice(1).split("?");
  return { path: path || "/", query: new URLSearchParams(query) };
}

export const place = signal<Place>(here());

/** The address of what is shown now. */
export function now(): string {
  return isBundle ? location.hash || "#/" : location.pathname + location.search;
}

/** An address as a link has it. */
export function href(to: string): string {
  return isBundle ? `#${to}` : to;
}

addEventListener("popstate", () => {
  place.value = here();
});

export function go(to: string, replace = false): void {
  if (to === now()) return;
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  place.value = here();
  if (!replace) scrollTo(0, 0);
}

/** Follows a link of the page without loading it again. */
export function follow(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  const to = link?.getAttribute("href");
  if (isBundle && to && /^#[^/]/.test(to)) {
    // A place in this view: behind `#` stands which view it is.
    event.preventDefault();
    document.getElementById(to.slice(1))?.scrollIntoView();
    return;
  }
  if (!link || !to?.startsWith(href("/")) || link.target) return;
  event.preventDefault();
  go(to);
}

export type Query = Record<string, string | number | null | undefined>;

/** Adds a query to a path; empty and absent values are left out. */
function withQuery(path: string, asked: URLSearchParams, query: Query): string {
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") asked.delete(name);
    else asked.set(name, String(value));
  }
  const text = asked.toString();
  return text ? `${path}?${text}` : path;
}

/** The address of a question to the server. */
export function question(path: string[], query: Query = {}): string {
  return withQuery(`/${path.map(encodeURIComponent).join("/")}`, new URLSearchParams(), query);
}

/** The address of a view. */
export function link(path: string[], query: Query = {}): string {
  return href(question(path, query));
}

/** Changes the query of the address. */
export function change(query: Query, replace = false): void {
  go(href(withQuery(place.value.path, new URLSearchParams(place.value.query), query)), replace);
}
