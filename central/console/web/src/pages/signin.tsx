import { useState } from "preact/hooks";
import { setToken } from "../api.ts";
import { signIn } from "../session.ts";
import { Button, Refusal, Text } from "../ui.tsx";

export function SignIn({ why, resuming, done }: { why: string; resuming: boolean; done: () => void }) {
  const [text, setText] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (e: Event) => {
    e.preventDefault();
    if (!text.trim() || busy) return;
    setBusy(true);
    setError(null);
    try {
      await signIn(text.trim());
      done();
    } catch (e) {
      setToken(null);
      setError(e);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="signin">
      <form onSubmit={submit}>
        <img src="icon.svg" alt="" width="40" height="40" />
        <h1>FluxVM fleet</h1>
        {resuming ? (
          <p class="dim" role="status">{why || "Signing in again…"}</p>
        ) : (
          <>
            <p class="dim">Sign in with a token: the operator's, or a tenant's key, which shows that tenant's own.</p>
            <Text label="Token" type="password" value={text} set={setText} mono autoFocus hint="It stays in this tab and is forgotten when the tab closes." />
            <Refusal error={error ?? (why || null)} />
            <Button kind="main" submit busy={busy}>{busy ? "Signing in…" : "Sign in"}</Button>
            <details>
              <summary>Where do I find one?</summary>
              <p>The first operator's token is in <code>operator-token</code> in a replica's data directory. A tenant's key is made under Leases and tenants, or with <code>fluxctl fleet key-create</code>.</p>
            </details>
          </>
        )}
      </form>
    </main>
  );
}
