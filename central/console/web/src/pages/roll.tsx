import { useEffect, useState } from "preact/hooks";
import { post, seg } from "../api.ts";
import type { Pool } from "../api.ts";
import { count, imageTitle } from "../format.ts";
import { images, pools, reloadImages, took } from "../live.ts";
import { me } from "../session.ts";
import { replaced, rollPlan, rollsTo, waitReason } from "../sums.ts";
import { ask, Bar, Button, Field, FormDialog, mistyped, say, Select, Text, Until } from "../ui.tsx";

const roll = (p: Pool, body: object) => post<Pool>(`/fleet/pools/${seg(p.name)}/roll`, body);

/** How far a pool is on its way to another image, or why it stopped. */
export function RollState({ pool: p, steer }: { pool: Pool; steer: boolean }) {
  const s = p.status, r = s?.roll;
  if (!r) return null;
  const paused = r.state === "paused";
  const why = s.wait_reason && s.wait_reason !== "boot_failed" ? waitReason[s.wait_reason] ?? s.wait_reason : `two boots of ${r.image} in a row failed`;
  const back = () => {
    const of = replaced(p, r.from);
    ask({
      title: `Take ${p.name} back to ${r.from}?`,
      body: <p>{of ? `${count(of, "warm VM")} of ${r.image} will be replaced again.` : `It has no warm VM of ${r.image} yet.`} Those of {r.from} stay and count again, and VMs that were taken keep running.</p>,
      action: `Go back to ${r.from}`,
      act: async () => {
        took("pool", await roll(p, { abort: true }));
        say(`Warm pool ${p.name} goes back to ${r.from}`);
      },
    });
  };
  return (
    <section class={`roll ${paused ? "warn" : ""}`} aria-label={`Roll of ${p.name}`}>
      <p>From {r.from} to <strong>{r.image}</strong></p>
      <Bar value={s.ready - s.stale} max={p.min_ready} tone={paused ? "warn" : "info"} label={`${p.name}: VMs of ${r.image} ready`} />
      <p>{s.ready - s.stale} of {p.min_ready} replaced{s.stale ? `, ${s.stale} ready of the old image` : ""}</p>
      {paused && <p><strong>Paused:</strong> {why}.{s.stale ? ` The ${count(s.stale, "VM")} of ${r.from} ${s.stale === 1 ? "stays" : "stay"}.` : ""}</p>}
      {paused && s.last_error && <p><strong>Last error:</strong> {s.last_error}</p>}
      {paused && s.backoff_until && <p class="dim">Next try <Until at={s.backoff_until} past="now" /></p>}
      {steer && <Button act={back} aria-label={`Go back to ${r.from} in ${p.name}`}>Go back</Button>}
    </section>
  );
}

export function Roll({ of, close }: { of: Pool; close: () => void }) {
  useEffect(reloadImages, []);
  const p = pools.value?.find((one) => one.name === of.name) ?? of;
  const list = rollsTo(p, images.value ?? []);
  const [f, setF] = useState({ image: "", atOnce: "1", stale: "allow" });
  const set = (k: keyof typeof f) => (v: string) => setF((old) => ({ ...old, [k]: v }));
  const image = list.find((i) => i.name === f.image);
  const atOnce = /^\d+$/.test(f.atOnce.trim()) ? Number(f.atOnce) : null;
  const send = async () => {
    if (!image) throw mistyped("image", list.length ? "choose the image that it shall boot from" : "there is no image that it could go on to");
    if (atOnce === null) throw mistyped("max_unavailable", "write a whole number of VMs to replace at a time");
    const n = replaced(p, image.name);
    took("pool", await roll(p, { image: image.name, max_unavailable: atOnce, stale_use: f.stale }));
    say(`Rolling warm pool ${p.name} to ${image.name}`, n ? `${count(n, "VM")} to replace.` : undefined);
  };
  const guest = p.guest_os === "macos" ? "macOS" : "Linux";
  const agent = p.readiness === "agent" ? " with the guest agent" : "";
  return (
    <FormDialog title={`Roll ${p.name} to another image`} action="Roll pool" send={send} close={close}>
      {(error) => <>
        <p class="dim">It boots from {p.image} now. Size, hosts and how many are kept stay.</p>
        {list.length ? (
          <Select label="Image" field="image" error={error} value={image?.name ?? ""} set={set("image")} options={[{ value: "", text: "Choose one" }, ...list.map((i) => ({ value: i.name, text: imageTitle(i) }))]} hint={`${guest} images${agent}, as this pool needs`} autoFocus />
        ) : (
          <Field label="Image" field="image" error={error}>{(a) => <p {...a} class="dim">The catalog has no other {guest} image{agent}. {me.value?.side === "operator" ? "Add one on the Cluster page first." : "Ask the operator to add one."}</p>}</Field>
        )}
        <Text label="Replace at a time" field="max_unavailable" error={error} value={f.atOnce} set={set("atOnce")} inputMode="numeric" hint="So many VMs may be missing at a time" />
        <Select label="Launches may take meanwhile" field="stale_use" error={error} value={f.stale} set={set("stale")} options={[{ value: "allow", text: "VMs of either image" }, { value: "never", text: "only VMs of the new image" }]}
          hint={f.stale === "allow" ? "One of the old image only if they name no image" : "They boot the usual way while none of it is ready"} />
        {image && atOnce !== null && atOnce > 0 && <p class="preview" role="status">{rollPlan(p, image.name, atOnce)}</p>}
      </>}
    </FormDialog>
  );
}
