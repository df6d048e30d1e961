import { useEffect, useState } from "preact/hooks";
import { get, post, Problem } from "../api.ts";
import type { DryRunAnswer, LaunchAnswer, Pool } from "../api.ts";
import { coldReason, count, duration, imageTitle, labels, memory, mib, ms, reasons } from "../format.ts";
import { images, nodes, pools, reloadImages, tenants, took } from "../live.ts";
import { link } from "../route.ts";
import { me } from "../session.ts";
import { Check, FormDialog, mistyped, say, Select, Text } from "../ui.tsx";

/** What a launch came to, in the words of the warm pools page. */
export function launched(a: LaunchAnswer): { title: string; body: string } {
  const v = a.vm;
  const size = `${v.image}, ${count(v.vcpus, "vCPU")}, ${mib(v.memory_mib)}`;
  return {
    title: `Launched ${v.name} on ${a.node} (${size})`,
    body: a.warm ? `Started instantly from warm pool ${a.pool}${a.claim_ms !== undefined ? ` (${ms(a.claim_ms)})` : ""}` : `Boots the usual way: ${coldReason(a.cold_reason, v.pool)}.`,
  };
}

export function Launch({ pool, close }: { pool?: Pool; close: () => void }) {
  useEffect(reloadImages, []);
  const operator = me.value?.side === "operator";
  const list = images.value ?? [];
  const [f, setF] = useState({ name: "", from: pool ? "pool:" + pool.name : "image:" + (list[0]?.name ?? ""), ttl: "2h", tenant: pool?.tenant ?? "", node: "", selector: "", vcpus: "", memory: "", reschedulable: false });
  const set = (k: keyof typeof f) => (v: string) => setF((old) => ({ ...old, [k]: v }));
  const byPool = f.from.startsWith("pool:");
  const what = f.from.slice(f.from.indexOf(":") + 1);
  const body = () => {
    const ttl = f.ttl.trim() ? duration(f.ttl) : undefined;
    if (ttl === null) throw mistyped("ttl_seconds", "write the time limit as 90m, 2h or 1d");
    const size = f.memory.trim() ? memory(f.memory) : undefined;
    if (size === null) throw mistyped("memory_mib", "write memory as 512M or 16G");
    const selector = labels(f.selector);
    if (!selector) throw mistyped("node_selector", "write labels as key=value, separated by commas");
    return {
      ...(f.name.trim() ? { name: f.name.trim() } : {}), ...(byPool ? { pool: what } : { image: what }), ttl_seconds: ttl,
      ...(operator && f.tenant ? { tenant: f.tenant } : {}), ...(f.node ? { node: f.node } : {}), ...(Object.keys(selector).length ? { node_selector: selector } : {}),
      ...(f.vcpus.trim() ? { vcpus: Number(f.vcpus) } : {}), memory_mib: size, ...(f.reschedulable ? { reschedulable: true } : {}),
    };
  };
  const [preview, setPreview] = useState<string>("");
  useEffect(() => {
    let gone = false;
    const soon = setTimeout(async () => {
      try {
        const a = await post<DryRunAnswer>("/fleet/vms?dry_run=true", body(), { patienceMS: 0 });
        if (!gone) setPreview(a.warm ? `A warm VM of pool ${a.pool} is ready${a.node ? ` on ${a.node}` : ""}: it starts at once.` : a.node ? `It boots on ${a.node}; no warm VM fits.` : `It fits nowhere now: ${reasons(a.reasons) || "no host is there"}.`);
      } catch (e) {
        if (!gone) setPreview(e instanceof Problem && e.status >= 400 && e.status < 500 ? e.message : "");
      }
    }, 250);
    return () => ((gone = true), clearTimeout(soon));
  }, [f]);
  const send = async () => {
    const answer = await post<LaunchAnswer>("/fleet/vms", body());
    took("vm", answer.vm);
    const { title, body: words } = launched(answer);
    say(title, words, { href: link("vms", answer.vm.id), tone: answer.warm ? "ok" : "info" });
    if (answer.pool) void get<Pool>(`/fleet/pools/${answer.pool}`).then((p) => took("pool", p), () => {});
  };
  const options = [
    ...(pools.value ?? []).map((p) => ({ value: "pool:" + p.name, text: `Warm pool ${p.name} (${p.status?.ready ?? 0} ready)` })),
    ...list.map((i) => ({ value: "image:" + i.name, text: imageTitle(i) })),
  ];
  return (
    <FormDialog title={pool ? `Launch from ${pool.name}` : "Launch a VM"} action="Launch" send={send} close={close}>
      {(error) => (
        <>
          <Text label="Name" field="name" error={error} value={f.name} set={set("name")} placeholder="build-42" hint="Made from its id when left out" autoFocus />
          {!pool && <Select label="From" field="image" error={error} value={f.from} set={set("from")} options={options} hint="An image takes a warm VM by itself whenever a pool of it has one ready." />}
          <Text label="Time limit" field="ttl_seconds" error={error} value={f.ttl} set={set("ttl")} placeholder="2h" hint="It is deleted after that; empty is the owner's default" />
          {operator && <Select label="Owner" field="tenant" error={error} value={f.tenant} set={set("tenant")} options={[{ value: "", text: "The operator" }, ...(tenants.value ?? []).map((t) => ({ value: t.name, text: t.name }))]} />}
          <details>
            <summary>Size and host</summary>
            <div class="fields">
              <div class="two">
                <Text label="vCPUs" field="vcpus" error={error} value={f.vcpus} set={set("vcpus")} inputMode="numeric" placeholder="the image's" />
                <Text label="Memory" field="memory_mib" error={error} value={f.memory} set={set("memory")} placeholder="the image's" />
              </div>
              <Select label="Host" field="node" error={error} value={f.node} set={set("node")} options={[{ value: "", text: "Any that fits" }, ...(nodes.value ?? []).map((n) => ({ value: n.name, text: n.name }))]} />
              <Text label="Host labels" field="node_selector" error={error} value={f.selector} set={set("selector")} placeholder="zone=lab" />
              <Check label="Boot it anew elsewhere when its host is lost" value={f.reschedulable} set={(v) => setF((old) => ({ ...old, reschedulable: v }))} hint="Such a VM always boots the usual way." />
            </div>
          </details>
          <p class="preview" role="status">{preview || "\u00a0"}</p>
        </>
      )}
    </FormDialog>
  );
}
