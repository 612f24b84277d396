// The address of the page: every view, row and turn has one.

import { signal } from "@preact/signals";

export interface Place {
  path: string;
  query: URLSearchParams;
}

function here(): Place {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export const place = signal<Place>(here());

addEventListener("popstate", () => {
  place.value = here();
});

export function go(to: string, replace = false): void {
  if (to === location.pathname + location.search) return;
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
  if (!link || !to?.startsWith("/") || link.target) return;
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

export function link(path: string[], query: Query = {}): string {
  return withQuery(`/${path.map(encodeURIComponent).join("/")}`, new URLSearchParams(), query);
}

/** Changes the query of the address. */
export function change(query: Query, replace = false): void {
  go(withQuery(place.value.path, new URLSearchParams(place.value.query), query), replace);
}
