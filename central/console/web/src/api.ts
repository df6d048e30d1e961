import { signal } from "@preact/signals";
import type { APIError } from "./api.gen.ts";

export type * from "./api.gen.ts";

/** A refusal or failure in the API's own words. status is 0 when no replica answered. */
export class Problem extends Error {
  readonly status: number;
  readonly body: Partial<APIError>;
  constructor(status: number, body: Partial<APIError>) {
    super(body.detail || body.title || `the server answered ${status}`);
    this.status = status;
    this.body = body;
  }
}

const storageKey = "fluxvm.token";

/** The token of this tab. It is in session storage and in the Authorization header, nowhere else. */
export const token = signal<string | null>(sessionStorage.getItem(storageKey));

export function setToken(value: string | null) {
  if (value) sessionStorage.setItem(storageKey, value);
  else sessionStorage.removeItem(storageKey);
  token.value = value;
}

/** Called when a token that worked is refused. */
let signedOut: (why: string) => void = () => {};
export function onSignedOut(f: (why: string) => void) {
  signedOut = f;
}

/** What the server's clock is ahead of this one, in milliseconds. Countdowns and ages use the server's. */
export const clockSkew = signal(0);

function noteClock(resp: Response) {
  const date = Date.parse(resp.headers.get("Date") ?? "");
  if (!date) return;
  const skew = date - Date.now();
  if (Math.abs(skew - clockSkew.peek()) > 2000) clockSkew.value = Math.abs(skew) < 2000 ? 0 : skew;
}

/** A key that names one intent, so that repeating it has one effect. randomUUID needs a secure context. */
export function newKey(): string {
  const raw = crypto.getRandomValues(new Uint8Array(16));
  return "console-" + Array.from(raw, (b) => b.toString(16).padStart(2, "0")).join("");
}

export type Options = {
  signal?: AbortSignal;
  /** How long to go on trying while the cluster has no leader or no replica answers. */
  patienceMS?: number;
  as?: string;
};

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));

/**
 * One request, repeated while a failover goes on: reads always, changes only where repeating is harmless (every POST
 * carries a key; merge patches and deletes name what shall be).
 */
export async function request(method: string, path: string, body?: unknown, opts: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json" };
  const as = opts.as ?? token.peek();
  if (as) headers.Authorization = `Bearer ${as}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method === "POST") headers["Idempotency-Key"] = newKey();
  const end = Date.now() + (opts.patienceMS ?? 12_000);
  for (let attempt = 0; ; attempt++) {
    let failure: Problem;
    try {
      const resp = await fetch(path, {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
        signal: opts.signal,
      });
      noteClock(resp);
      if (resp.ok) return resp;
      if (method === "DELETE" && resp.status === 404 && attempt > 0) return resp; // the first try got through
      failure = new Problem(resp.status, await resp.json().catch(() => ({})));
    } catch (e) {
      if (opts.signal?.aborted) throw e;
      failure = new Problem(0, { detail: "No replica answers at this address. The page keeps trying." });
    }
    if (failure.status === 401 && !opts.as && token.peek() === as) signedOut(failure.message);
    const again = failure.status === 0 || failure.status === 503 && ["not_leader", "unavailable"].includes(failure.body.code ?? "") ||
      failure.status === 504 && failure.body.code === "outcome_unknown";
    const wait = Math.min(300 * 2 ** attempt, 2000);
    if (!again || Date.now() + wait > end) throw failure;
    await pause(wait);
  }
}

async function json<T>(resp: Response): Promise<T> {
  return resp.status === 204 || resp.status === 404 ? (undefined as T) : ((await resp.json()) as T);
}

export const get = async <T>(path: string, opts?: Options) => json<T>(await request("GET", path, undefined, opts));
export const post = async <T>(path: string, body: unknown = {}, opts?: Options) => json<T>(await request("POST", path, body, opts));
export const patch = async <T>(path: string, body: unknown) => json<T>(await request("PATCH", path, body));
export const del = async <T = void>(path: string) => json<T>(await request("DELETE", path));

export type Page<T> = { items: T[]; next_cursor: string | null };

/** Every page of a list, and the index of the state that the first one showed. */
export async function all<T>(path: string, opts?: Options): Promise<{ items: T[]; index: string }> {
  const items: T[] = [];
  let index = "";
  let cursor: string | null = null;
  do {
    const query: string = (path.includes("?") ? "&" : "?") + "limit=500" + (cursor ? "&cursor=" + encodeURIComponent(cursor) : "");
    const resp: Response = await request("GET", path + query, undefined, opts);
    index ||= resp.headers.get("X-Fluxvm-Index") ?? "";
    const page: Page<T> = await resp.json();
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return { items, index };
}

/** A name as a part of a path. */
export const seg = (name: string) => encodeURIComponent(name);
