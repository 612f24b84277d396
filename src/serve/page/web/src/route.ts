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

type Query = Record<string, string | number | null | undefined>;

export function link(path: string[], query: Query = {}): string {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") asked.set(name, String(value));
  }
  const text = asked.toString();
  return `/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Changes the query of the address. */
export function change(query: Query, replace = false): void {
  const asked = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") asked.delete(name);
    else asked.set(name, String(value));
  }
  const text = asked.toString();
  go(`${place.value.path}${text ? `?${text}` : ""}`, replace);
}
