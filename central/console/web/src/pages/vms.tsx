import { useMemo, useState } from "preact/hooks";
import { del, seg } from "../api.ts";
import type { VM } from "../api.ts";
import { count, mib } from "../format.ts";
import { lost, vms } from "../live.ts";
import { keep, link, route } from "../route.ts";
import { me } from "../session.ts";
import { DataTable, type Column } from "../table.tsx";
import { Ago, ask, Button, Empty, Icon, Page, say, Skeleton, Tag, type Tone } from "../ui.tsx";
import { Launch } from "./launch.tsx";

const tones: Record<string, Tone> = { running: "ok", placed: "info", booting: "info", deleting: "quiet", stopped: "quiet", paused: "quiet", failed: "bad", lost: "bad", unknown: "warn", gone: "quiet" };

export const VMTags = ({ vm: v }: { vm: VM }) => (
  <>
    {v.warm_pool ? (
      <Tag tone={v.warm_state === "ready" ? "ok" : "warn"} title={`A spare of pool ${v.warm_pool}`}>{v.warm_state === "ready" ? "Warm, ready" : "Warm, booting"}</Tag>
    ) : (
      <Tag tone={tones[v.state] ?? "quiet"} title={v.reason}>{v.state[0]!.toUpperCase() + v.state.slice(1)}</Tag>
    )}
  </>
);

const filters: Record<string, { text: string; match: (v: VM) => boolean }> = {
  "": { text: "All", match: () => true },
  running: { text: "Running", match: (v) => v.state === "running" && !v.warm_pool },
  starting: { text: "Starting", match: (v) => (v.state === "placed" || v.state === "booting") && !v.warm_pool },
  warm: { text: "Warm", match: (v) => Boolean(v.warm_pool) },
  trouble: { text: "Trouble", match: (v) => v.state === "failed" || v.state === "lost" || v.state === "unknown" },
};

export function removeVM(v: VM, then?: () => void) {
  ask({
    title: `Delete ${v.name}?`,
    body: <p>The VM on {v.node || "no host yet"} is stopped and its disk is gone. This cannot be undone.</p>,
    action: "Delete VM",
    danger: true,
    act: async () => {
      await del(`/fleet/vms/${seg(v.id)}`);
      lost("vm", v);
      say(`Deleted ${v.name}`);
      then?.();
    },
  });
}

export const vmColumns = (operator: boolean): Column<VM>[] => [
  { head: "Name", by: (v) => v.name, cell: (v) => <a class="name" href={link("vms", v.id)}>{v.name}</a> },
  { head: "State", by: (v) => (v.warm_pool ? "warm " + v.warm_state : v.state), cell: (v) => <VMTags vm={v} /> },
  ...(operator ? [{ head: "Owner", by: (v: VM) => v.tenant ?? "", cell: (v: VM) => v.tenant ?? <span class="dim">operator</span> }] : []),
  { head: "Image", by: (v) => v.image, cell: (v) => v.image, extra: true },
  { head: "Size", num: true, by: (v) => v.memory_mib, cell: (v) => `${v.vcpus} vCPU, ${mib(v.memory_mib)}`, extra: true },
  { head: "Host", by: (v) => v.node, cell: (v) => (v.node ? <a href={link("hosts", v.node)}>{v.node}</a> : <span class="dim">none yet</span>) },
  { head: "Made", num: true, by: (v) => v.created_at ?? "", cell: (v) => <Ago at={v.created_at} /> },
  { head: "Ends", num: true, by: (v) => v.expires_at ?? "~", cell: (v) => <Ago at={v.expires_at} none="—" /> },
];

export function VMs() {
  const [launching, setLaunching] = useState(false);
  const { query } = route.value;
  const text = query.get("q") ?? "";
  const state = query.get("state") ?? "";
  const operator = me.value?.side === "operator";
  const list = vms.value;
  const shown = useMemo(() => {
    if (!list) return [];
    const match = (filters[state] ?? filters[""]!).match;
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    return list.filter((v) => match(v) && wanted.every((w) => `${v.name} ${v.image} ${v.node} ${v.tenant ?? "operator"} ${v.state} ${v.warm_pool ?? ""} ${v.claimed_from ?? ""} ${v.ip ?? ""} ${v.id}`.toLowerCase().includes(w)));
  }, [list, text, state]);
  const columns = useMemo(() => [
    ...vmColumns(operator),
    { head: "", cell: (v: VM) => me.value?.writes && <Button kind="quiet" act={() => removeVM(v)} aria-label={`Delete ${v.name}`}>Delete</Button> },
  ], [operator, me.value?.writes]);
  const launch = <Button kind="main" disabled={!me.value?.writes} act={() => setLaunching(true)}><Icon name="plus" />Launch VM</Button>;
  return (
    <Page title="Virtual machines" note={list ? count(list.length, "VM") : " "} actions={launch}>
      <div class="filters">
        <input type="search" aria-label="Filter VMs" placeholder="Filter by name, image, host, owner…" value={text} onInput={(e) => keep({ q: e.currentTarget.value })} />
        <div class="chips" role="group" aria-label="State">
          {Object.entries(filters).map(([k, f]) => (
            <button type="button" key={k} aria-pressed={k === state} onClick={() => keep({ state: k })}>
              {f.text} <span>{list ? list.filter(f.match).length.toLocaleString("en") : ""}</span>
            </button>
          ))}
        </div>
      </div>
      {!list ? <Skeleton lines={8} /> : list.length === 0 ? (
        <Empty title="No VM yet" action={launch}>Launch one; if a warm pool has its image ready, it starts at once.</Empty>
      ) : (
        <DataTable label="Virtual machines" rows={shown} columns={columns} id={(v) => v.id} sort={operator ? 6 : 5} down
          empty={<Empty title="Nothing matches" action={<Button act={() => keep({ q: "", state: "" })}>Clear the filter</Button>} />} />
      )}
      {launching && <Launch close={() => setLaunching(false)} />}
    </Page>
  );
}
