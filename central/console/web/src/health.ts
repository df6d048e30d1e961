import { computed } from "@preact/signals";
import { cluster, leases, nodes, pools, vms } from "./live.ts";
import { worries, type Worry } from "./sums.ts";

/** What someone should look at now. */
export const attention = computed<Worry[]>(() => worries(cluster.value, nodes.value ?? [], pools.value ?? [], leases.value ?? [], vms.value ?? [], Date.now()));
