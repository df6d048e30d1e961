import { signal } from "@preact/signals";
import { get, Problem, request, setToken } from "./api.ts";
import type { Page, Tenant } from "./api.ts";

/** Who is signed in, as the API's answers tell: whose side, and whether changes are allowed. */
export type Me = { side: "operator" | "tenant"; tenant: string | null; writes: boolean };

export const me = signal<Me | null>(null);

async function allowed(method: string, path: string, as: string, body?: unknown): Promise<boolean> {
  try {
    await request(method, path, body, { as });
    return true;
  } catch (e) {
    if (e instanceof Problem && e.status === 403) return false;
    if (e instanceof Problem && e.status === 400) return true; // let in, and then the empty body was refused
    throw e;
  }
}

/** Finds out what a token may do. It throws the API's refusal of one that is not known. */
export async function whoIs(as: string): Promise<Me> {
  const first = await get<Page<Tenant>>("/fleet/tenants?limit=1", { as });
  const [operator, writes] = await Promise.all([
    allowed("GET", "/fleet/cluster", as),
    allowed("POST", "/fleet/vms?dry_run=true", as, {}), // an empty dry run: refused to viewers, else as incomplete
  ]);
  return operator ? { side: "operator", tenant: null, writes } : { side: "tenant", tenant: first.items[0]?.name ?? null, writes };
}

export async function signIn(as: string) {
  const who = await whoIs(as);
  setToken(as);
  me.value = who;
}

export function signOut() {
  setToken(null);
  me.value = null;
}
