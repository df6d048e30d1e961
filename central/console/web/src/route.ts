import { computed, signal } from "@preact/signals";
import { link } from "./format.ts";

export { link };

/** The address after #: a path and what a page keeps in it. Nothing of it is sent to the server, and no token is in it. */
const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

export const route = computed(() => {
  const [path = "", query = ""] = hash.value.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { page: parts[0] ?? "", rest: parts.slice(1), query: new URLSearchParams(query) };
});

export function go(to: string) {
  location.hash = to;
}

/** Changes what the page keeps in the address, without a step in the history. */
export function keep(change: Record<string, string>) {
  const { page, rest, query } = route.peek();
  const next = new URLSearchParams(query);
  for (const [k, v] of Object.entries(change)) v ? next.set(k, v) : next.delete(k);
  const text = next.toString();
  history.replaceState(null, "", link(...[page, ...rest].filter(Boolean)) + (text ? "?" + text : ""));
  hash.value = location.hash;
}
