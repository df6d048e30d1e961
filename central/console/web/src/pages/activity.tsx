import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.ts";
import type { Activity, Page as ListPage } from "../api.ts";
import { happened } from "../live.ts";
import { keep, link as to, route } from "../route.ts";
import { Ago, Button, Empty, Page, refuse, Skeleton, Tag } from "../ui.tsx";

const verbs: Record<string, string> = {
  "POST /fleet/vms": "launched", "DELETE /fleet/vms/{id}": "deleted VM", "DELETE /fleet/vms/{node}/{id}": "deleted VM", "PATCH /fleet/vms/{id}": "changed VM", "POST /fleet/vms/{id}/exec": "ran a command in",
  "POST /fleet/pools": "created pool", "PATCH /fleet/pools/{name}": "changed pool", "DELETE /fleet/pools/{name}": "deleted pool", "POST /fleet/pools/{name}/roll": "rolls pool",
  "POST /fleet/nodes/{name}/cordon": "cordoned", "POST /fleet/nodes/{name}/uncordon": "uncordoned", "POST /fleet/nodes/{name}/drain": "drains", "PATCH /fleet/nodes/{name}": "changed host", "DELETE /fleet/nodes/{name}": "removed host", "POST /fleet/nodes/{name}/scrub": "scrubs",
  "POST /fleet/leases": "leased", "DELETE /fleet/leases/{id}": "ended lease", "PATCH /fleet/leases/{id}": "changed lease",
  "POST /fleet/tenants": "added tenant", "PATCH /fleet/tenants/{name}": "changed tenant", "DELETE /fleet/tenants/{name}": "removed tenant", "POST /fleet/tenants/{name}/keys": "made a key", "DELETE /fleet/tenants/{name}/keys/{id}": "revoked a key",
  "POST /fleet/images": "added image", "PATCH /fleet/images/{name}": "changed image", "DELETE /fleet/images/{name}": "removed image", "PATCH /fleet/policy": "changed the policy", "PUT /fleet/prices": "set the prices",
  "POST /fleet/join-tokens": "made a join token", "POST /fleet/register": "joined", InitCluster: "began cluster", "POST /fleet/ledger": "adjusted the ledger of",
  replace: "replaced", "hand-over": "handed over", boot: "booted a VM for", end: "ended", start: "started lease", renew: "renewed lease", ended: "ended lease", scrub: "scrubbed after lease", reboot: "rebooted",
};

/** What was done, in a few words; an action that is not known here is shown as it is. */
export const verb = (a: Activity) => verbs[a.action] ?? a.action;

const uuid = /^[0-9a-f]{8}-[0-9a-f-]{27}$/;

/** Ids are shortened, and what a verb says already is left out. */
const short = (text: string) => (uuid.test(text) ? text.slice(0, 8) : text);
const target = (a: Activity) => (a.action.endsWith("/" + a.target) ? "" : short(a.target));

/** A detail in words: reasons speak for themselves. */
const prefix: Record<string, string> = { reason: "", error: "", node: "on ", ends_at: "ends " };
const detail = (k: string, v: unknown) => (k in prefix ? prefix[k] + String(v) : `${k.replaceAll("_", " ")} ${typeof v === "object" ? JSON.stringify(v) : short(String(v))}`);

const good = (a: Activity) => a.outcome === "ok" || a.outcome === "" || a.outcome === "applied";

function Line({ item: a }: { item: Activity }) {
  const vm = typeof a.detail.vm_id === "string" ? a.detail.vm_id : "";
  const rest = Object.entries(a.detail).filter(([k]) => k !== "vm_id");
  return (
    <li>
      <div>
        <span class="actor">{a.actor}</span> <span class="dim" title={a.action}>{verb(a)}</span> {vm ? <a href={to("vms", vm)}>{a.target}</a> : <strong title={a.target}>{target(a)}</strong>}
        {!good(a) && <Tag tone="bad">{a.outcome}</Tag>}
        {rest.length > 0 && <p class="dim small">{rest.map(([k, v]) => detail(k, v)).join(" · ")}</p>}
      </div>
      <Ago at={a.at} />
    </li>
  );
}

export const ActivityItems = ({ items }: { items: Activity[] }) =>
  items.length ? <ul class="activity">{items.map((a) => <Line key={a.id} item={a} />)}</ul> : <Empty title="Nothing yet">Whatever is done to the fleet is written down here.</Empty>;

export function ActivityLog() {
  const { query } = route.value;
  const q = { actor: query.get("actor") ?? "", target: query.get("target") ?? "", action: query.get("action") ?? "" };
  const [list, setList] = useState<Activity[] | null>(null);
  const [cursor, setCursor] = useState<string | null>(null);
  const more = useRef(false); // older pages are shown: what is new is put on top of them
  const where = "/fleet/activity?limit=50" + Object.entries(q).filter(([, v]) => v).map(([k, v]) => `&${k}=${encodeURIComponent(v)}`).join("");
  const tick = Math.floor(happened.value / 2);
  useEffect(() => {
    more.current = false;
  }, [where]);
  useEffect(() => {
    let gone = false;
    const soon = setTimeout(async () => {
      try {
        const page = await get<ListPage<Activity>>(where);
        if (gone) return;
        setList((old) => {
          if (!more.current || !old) return page.items;
          const known = new Set(page.items.map((a) => a.id));
          return [...page.items, ...old.filter((a) => !known.has(a.id))];
        });
        if (!more.current) setCursor(page.next_cursor);
      } catch (e) {
        if (!gone && !list) refuse(e);
      }
    }, list ? 300 : 0);
    return () => ((gone = true), clearTimeout(soon));
  }, [where, tick]);
  const older = async () => {
    const page = await get<ListPage<Activity>>(`${where}&cursor=${encodeURIComponent(cursor!)}`);
    more.current = true;
    setList((old) => [...(old ?? []), ...page.items]);
    setCursor(page.next_cursor);
  };
  const actions = Object.entries(verbs).filter(([k]) => k.includes(" ") && !k.includes("register"));
  return (
    <Page title="Activity" note="Who did what, with what result">
      <div class="filters">
        <input type="search" aria-label="Who" placeholder="Who, such as operator or warm-pool" value={q.actor} onChange={(e) => keep({ actor: e.currentTarget.value.trim() })} />
        <select aria-label="What" value={q.action} onChange={(e) => keep({ action: e.currentTarget.value })}>
          <option value="">Anything</option>
          {actions.map(([k, v]) => <option key={k} value={k} selected={k === q.action}>{v} ({k.split(" ")[0]})</option>)}
        </select>
        <input type="search" aria-label="To what" placeholder="To what, such as build-42" value={q.target} onChange={(e) => keep({ target: e.currentTarget.value.trim() })} />
      </div>
      {!list ? <Skeleton lines={10} /> : <ActivityItems items={list} />}
      {cursor && <p class="more"><Button act={older}>Show older</Button></p>}
    </Page>
  );
}
