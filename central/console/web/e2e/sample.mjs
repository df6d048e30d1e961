// A small fleet with something on every page, for pictures and for the accessibility check.
import { eventually } from "./fleet.mjs";

export async function fill(fleet) {
  const post = (path, body) => fleet.api("POST", path, body);
  await post("/fleet/images", { name: "macos-27-xcode", title: "macOS 27 with Xcode", path: "sim:?boot_ms=1500&agent_ms=300", guest_os: "macos", vcpus: 6, memory_mib: 16384, has_agent: true });
  await post("/fleet/images", { name: "debian-13", title: "Debian 13", path: "sim:?boot_ms=900&agent_ms=200", vcpus: 2, memory_mib: 4096, has_agent: true });
  await post("/fleet/images", { name: "debian-14", title: "Debian 14", path: "sim:?boot_ms=900&agent_ms=200", vcpus: 2, memory_mib: 4096, has_agent: true });
  await post("/fleet/images", { name: "broken", title: "Nightly build", path: "sim:?fail=boot", vcpus: 1, memory_mib: 1024, has_agent: true });
  await post("/fleet/tenants", { name: "acme", quota: { max_vms: 12, max_vcpus: 48, max_memory_mib: 98304, max_macos_guests: 2, max_leases: 2, max_pools: 4 } });
  await post("/fleet/tenants", { name: "globex", default_ttl_seconds: 14400, max_ttl_seconds: 604800, policy: { min_lease_hours: 48 }, quota: { max_vms: 5, max_vcpus: 10, max_memory_mib: 20480, max_macos_guests: null, max_leases: 0, max_pools: 2 } });
  await fleet.api("PUT", "/fleet/prices", { currency: "EUR", vm: [{ guest_os: "linux", vcpu_hour_micros: 10000, gib_hour_micros: 5000, on_leased: false }], lease: [{ label: "", hour_micros: 900000 }], pool: [] });
  const key = await post("/fleet/tenants/acme/keys", { role: "tenant" });
  await post("/fleet/tenants/acme/keys", { role: "viewer", expires_in_secs: 7776000 });
  const macs = (await fleet.api("GET", "/fleet/nodes")).items.filter((n) => n.apple);
  if (macs.length) await post("/fleet/leases", { tenant: "acme", node: macs[0].name, duration: "7d", auto_renew: true });
  await post("/fleet/pools", { name: "linux-ci", image: "debian-13", min_ready: 4, tenant: "acme" });
  await post("/fleet/pools", { name: "shared", image: "debian-13", min_ready: 3 });
  await post("/fleet/pools", { name: "web", image: "debian-13", min_ready: 3 });
  await post("/fleet/pools", { name: "nightly", image: "broken", min_ready: 2 });
  if (macs.length) await post("/fleet/pools", { name: "ios-ci", image: "macos-27-xcode", min_ready: 2, tenant: "acme" });
  await eventually("a pool to fill", async () => (await fleet.api("GET", "/fleet/pools/linux-ci")).status.ready >= 3);
  await eventually("a pool to roll", async () => (await fleet.api("GET", "/fleet/pools/web")).status.state === "ready");
  await post("/fleet/pools/web/roll", { image: "broken" });
  for (const [name, body] of Object.entries({
    "build-41": { image: "debian-13", tenant: "acme", ttl_seconds: 7200 },
    "build-42": { image: "debian-13", tenant: "acme", ttl_seconds: 7200 },
    "db-1": { image: "debian-13", reschedulable: true, labels: { role: "database" } },
    "web-1": { image: "debian-13", tenant: "globex", reschedulable: true },
  })) await post("/fleet/vms", { name, ...body });
  await eventually("the VMs to be up", async () => (await fleet.api("GET", "/fleet/vms?state=running")).items.filter((v) => v.ready_at && !v.warm_pool).length >= 4);
  await eventually("the broken pool to say so", async () => (await fleet.api("GET", "/fleet/pools/nightly")).status.last_error);
  await eventually("the roll to pause", async () => (await fleet.api("GET", "/fleet/pools/web")).status.roll?.state === "paused");
  return { tenant: key.secret };
}

/** Every page, by name. ids are found in the fleet. */
export async function pages(fleet) {
  const vms = (await fleet.api("GET", "/fleet/vms")).items;
  const vm = vms.find((v) => v.name === "build-41") ?? vms[0];
  const nodes = (await fleet.api("GET", "/fleet/nodes")).items;
  return {
    overview: "#/",
    pools: "#/pools",
    vms: "#/vms",
    vm: `#/vms/${vm.id}`,
    hosts: "#/hosts",
    host: `#/hosts/${nodes.find((n) => n.name !== vm.node)?.name ?? nodes[0].name}`,
    leases: "#/leases",
    tenant: "#/tenants/acme",
    activity: "#/activity",
    cluster: "#/cluster",
  };
}
