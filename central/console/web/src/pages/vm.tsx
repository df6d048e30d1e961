import { useEffect, useRef, useState } from "preact/hooks";
import { get, patch, post, Problem, request, seg } from "../api.ts";
import type { ExecAnswer, VM } from "../api.ts";
import { coldReason, count, duration, mib, ms, showLabels, words } from "../format.ts";
import { took, vms } from "../live.ts";
import { go, link } from "../route.ts";
import { me } from "../session.ts";
import { Ago, Button, Check, Empty, Facts, FormDialog, mistyped, Page, Panel, Refusal, say, Skeleton, Text } from "../ui.tsx";
import { removeVM, VMTags } from "./vms.tsx";

export function OneVM({ id }: { id: string }) {
  const listed = vms.value?.find((v) => v.id === id || v.name === id);
  const [asked, setAsked] = useState<{ vm?: VM; error?: unknown }>({});
  const [extending, setExtending] = useState(false);
  useEffect(() => {
    if (!listed && vms.value) get<VM>(`/fleet/vms/${seg(id)}`).then((vm) => setAsked({ vm }), (error) => setAsked({ error }));
  }, [id, Boolean(listed), vms.value === null]);
  const v = listed ?? asked.vm;
  const back = { href: link("vms"), text: "Virtual machines" };
  if (!v) {
    if (asked.error instanceof Problem && asked.error.status === 404) return <Page title="Not here" back={back}><Empty title={asked.error.message}>It was deleted, or it never was yours to see.</Empty></Page>;
    return <Page title={"\u00a0"} back={back}><Refusal error={asked.error} />{!asked.error && <Skeleton lines={6} />}</Page>;
  }
  const writes = Boolean(me.value?.writes);
  const start = v.claimed_from ? <>Instantly, from warm pool <a href={link("pools")}>{v.claimed_from}</a></> : v.warm_pool ? <>A spare of warm pool <a href={link("pools")}>{v.warm_pool}</a></> : `Booted the usual way: ${coldReason(v.cold_reason, v.pool)}`;
  const boot = v.ready_at && v.created_at ? ms(Date.parse(v.ready_at) - Date.parse(v.created_at)) : "";
  return (
    <Page title={v.name} back={back} note={<VMTags vm={v} />} actions={writes && <>
      <Button act={() => setExtending(true)} disabled={Boolean(v.warm_pool)}>Change time limit</Button>
      <Button kind="danger" act={() => removeVM(v, () => go(link("vms")))}>Delete</Button>
    </>}>
      {v.reason && <div class="refusal"><p>{v.reason}</p></div>}
      <div class="columns">
        <Panel title="About">
          <Facts of={[
            ["Owner", v.tenant ?? "operator"], ["Host", v.node && <a href={link("hosts", v.node)}>{v.node}</a>], ["Image", v.image], ["Guest", v.guest_os === "macos" ? "macOS" : "Linux"],
            ["Size", `${count(v.vcpus, "vCPU")}, ${mib(v.memory_mib)}${v.disk_size_gib ? `, ${v.disk_size_gib} GiB disk` : ""}`], ["Address", v.ip], ["Backend", v.backend],
            ["Start", start], ["Made", <Ago at={v.created_at} />], ["Taken", v.claimed_at && <Ago at={v.claimed_at} />], ["Ready", v.ready_at ? <><Ago at={v.ready_at} /> <span class="dim">after {boot}</span></> : <span class="dim">the guest agent has not answered</span>],
            ["Ends", <Ago at={v.expires_at} none="no time limit" />], ["Labels", showLabels(v.labels ?? {})], ["If its host is lost", v.reschedulable ? "it boots anew elsewhere" : ""], ["Id", <code>{v.id}</code>],
          ]} />
        </Panel>
        <div class="stack">
          <Exec vm={v} writes={writes} />
          <ConsoleLog vm={v} />
        </div>
      </div>
      {extending && <TimeLimit vm={v} close={() => setExtending(false)} />}
    </Page>
  );
}

function TimeLimit({ vm: v, close }: { vm: VM; close: () => void }) {
  const [text, setText] = useState("2h");
  const send = async () => {
    const ttl = text.trim() ? duration(text) : null;
    if (text.trim() && ttl === null) throw mistyped("ttl_seconds", "write the time limit as 90m, 2h or 1d");
    const changed = await patch<VM>(`/fleet/vms/${seg(v.id)}`, { ttl_seconds: ttl });
    took("vm", changed);
    say(changed.expires_at ? `${v.name} ends ${new Date(changed.expires_at).toLocaleString()}` : `${v.name} has no time limit now`);
  };
  return (
    <FormDialog title={`Time limit of ${v.name}`} action="Change" send={send} close={close}>
      {(error) => (
        <>
          <p class="dim">{v.expires_at ? <>It ends <Ago at={v.expires_at} />.</> : "It has no time limit now."}</p>
          <Text label="From now on" field="ttl_seconds" error={error} value={text} set={setText} placeholder="2h" hint="Such as 90m, 2h or 1d. Empty takes the limit off, where policy allows it." autoFocus />
        </>
      )}
    </FormDialog>
  );
}

type Ran = { line: string; answer?: ExecAnswer; error?: unknown };

function Exec({ vm: v, writes }: { vm: VM; writes: boolean }) {
  const [line, setLine] = useState("");
  const [shell, setShell] = useState(true);
  const [busy, setBusy] = useState(false);
  const [ran, setRan] = useState<Ran[]>([]);
  const run = async (e: Event) => {
    e.preventDefault();
    if (!line.trim() || busy) return;
    setBusy(true);
    const one: Ran = { line };
    try {
      const argv = shell ? ["sh", "-c", line] : words(line);
      if (!argv) throw mistyped("argv", "a quote is not closed");
      one.answer = await post<ExecAnswer>(`/fleet/vms/${seg(v.id)}/exec`, { argv });
      setLine("");
    } catch (error) {
      one.error = error;
    }
    setRan((old) => [one, ...old].slice(0, 20));
    setBusy(false);
  };
  return (
    <Panel title="Run a command">
      <form class="exec" onSubmit={run}>
        <input class="mono" aria-label="Command" placeholder={shell ? "uname -a" : "/bin/uname -a"} value={line} disabled={!writes} autoComplete="off" spellcheck={false} autocapitalize="off" onInput={(e) => setLine(e.currentTarget.value)} />
        <Button kind="main" submit busy={busy} disabled={!writes || !line.trim()}>{busy ? "Running…" : "Run"}</Button>
      </form>
      <Check label="In a shell" value={shell} set={setShell} />
      <div class="ran" role="log" aria-label="Output of commands">
        {ran.map((r, i) => (
          <div key={ran.length - i}>
            <p class="mono"><span class="dim">$</span> {r.line} {r.answer && <span class={r.answer.exit_code || r.answer.timed_out ? "bad-text" : "dim"}>{r.answer.timed_out ? "ran out of time" : `exit ${r.answer.exit_code}`}</span>}</p>
            <Refusal error={r.error} />
            {r.answer?.stdout && <pre tabIndex={0} aria-label="Standard output">{r.answer.stdout}</pre>}
            {r.answer?.stderr && <pre tabIndex={0} class="err" aria-label="Standard error">{r.answer.stderr}</pre>}
            {r.answer?.truncated && <p class="dim">The rest was cut off.</p>}
          </div>
        ))}
        {!ran.length && <p class="dim">{v.ready_at || v.state !== "running" ? "What it prints appears here." : "The guest agent has not answered yet; a command waits for that."}</p>}
      </div>
    </Panel>
  );
}

function ConsoleLog({ vm: v }: { vm: VM }) {
  const [text, setText] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [followed, setFollowed] = useState(true);
  const ref = useRef<HTMLPreElement>(null);
  const ask = async () => {
    try {
      const resp = await request("GET", `/fleet/vms/${seg(v.id)}/console`, undefined, { patienceMS: 0 });
      const all = await resp.text();
      setText(all.length > 200_000 ? all.slice(-200_000) : all);
      setError(null);
    } catch (e) {
      setError(e);
    }
  };
  useEffect(() => {
    void ask();
    if (!followed) return;
    const t = setInterval(() => document.hidden || void ask(), 3000);
    return () => clearInterval(t);
  }, [v.id, v.node, followed]);
  useEffect(() => {
    if (followed && ref.current) ref.current.scrollTop = ref.current.scrollHeight;
  }, [text]);
  return (
    <Panel title="Console log" actions={<Check label="Follow" value={followed} set={setFollowed} />}>
      {text === null && !error ? <Skeleton /> : <>
        <Refusal error={text === null ? error : null} />
        {text !== null && <pre ref={ref} class="console" tabIndex={0} aria-label="Console log">{text || "Nothing was written yet."}</pre>}
      </>}
    </Panel>
  );
}
