// Code generated from pkg/api/openapi.json by npm run types. DO NOT EDIT.

/** An instant in UTC with milliseconds; null says not yet, or never. */
export type Time = string | null;

/** A refusal or failure: what went wrong and what to change. */
export type APIError = {
  /** One address per code. */
  type: string;
  /** The code in a few words. */
  title: string;
  /** The HTTP status. */
  status: number;
  /** What happened and what to change. */
  detail: string;
  /** One of a closed set; it decides the status and whether a retry can help. */
  code: "invalid" | "unauthenticated" | "forbidden" | "policy_denied" | "quota_exceeded" | "not_found" | "name_taken" | "conflict" | "host_full" | "stale_token" | "cursor_gone" | "too_large" | "key_reused" | "rate_limited" | "host_pressure" | "no_capacity" | "not_leader" | "unavailable" | "outcome_unknown" | "storage_full" | "internal";
  /** Names this request in the replica's log. */
  request_id: string;
  /** Equals detail, for older clients. */
  error: string;
  /** The field, header or parameter that was refused. */
  field?: string;
  /** Hosts counted by why each was ruled out. */
  reasons?: Record<string, number>;
  /** How long to wait before the next try. */
  retry_after_secs?: number;
  /** Whether anything changed: not_applied may be sent again, unknown only under the same key. */
  outcome?: "not_applied" | "unknown";
};

/** The control plane. */
export type Cluster = {
  id: string;
  /** Raised by a restore. */
  epoch: number;
  /** Name of the leading replica; empty while there is none. */
  leader: string;
  term: number;
  /** The last applied entry. */
  index: number;
  replicas: Replica[];
};

/** One member of the control plane. */
export type Replica = {
  name: string;
  /** Where other replicas reach it, host:port. */
  cluster_addr: string;
  /** Where clients reach it. */
  url: string;
  role: "leader" | "voter" | "nonvoter";
  healthy: boolean;
  applied_index: number;
  /** Since it was last heard; -1 when it does not answer. */
  last_contact_ms: number;
  /** Of its program. */
  version: string;
};

/** Who did what, with what result. */
export type Activity = {
  id: string;
  at: Time;
  /** Who: a key, a tenant, or a part of central such as warm-pool. */
  actor: string;
  /** The route, or the name of an event. */
  action: string;
  /** Name of the object. */
  target: string;
  outcome: string;
  detail: Record<string, unknown>;
};

/** The data of one server-sent event. */
export type Event = {
  action: "created" | "changed" | "deleted";
  /** The VM, pool, node, lease, tenant or replica as the API shows it. */
  object: unknown;
};

/** A virtual machine. */
export type VM = {
  id: string;
  name: string;
  /** Its owner; null is the operator. */
  tenant: string | null;
  /** The host; empty while none is chosen. */
  node: string;
  backend: string;
  image: string;
  guest_os: "linux" | "macos";
  vcpus: number;
  memory_mib: number;
  disk_size_gib: number;
  state: "placed" | "booting" | "running" | "deleting" | "gone" | "stopped" | "paused" | "failed" | "unknown" | "lost";
  /** Why it is in this state. */
  reason?: string;
  labels: Record<string, string>;
  created_at: Time;
  ready_at: Time;
  expires_at: Time;
  /** As its host sees it. */
  ip?: string;
  /** The pool named at launch, or that booted it. */
  pool?: string;
  /** The pool it is a spare of. */
  warm_pool?: string;
  warm_state?: "booting" | "ready";
  /** The pool it was taken from. */
  claimed_from?: string;
  claimed_at: Time;
  /** Why it was not taken from a pool. */
  cold_reason?: string;
  /** A drain may delete it. */
  ephemeral: boolean;
  /** It may be booted anew elsewhere when its host is lost. */
  reschedulable: boolean;
  /** Index of its last change; its ETag. */
  version: number;
};

/** What to run. A matching warm VM is taken where one is ready and the request asks for nothing that needs a boot. */
export type LaunchRequest = {
  /** Free among the owner's VMs; made from the id when left out. */
  name?: string;
  /** The owner; only the operator may name one. */
  tenant?: string;
  /** The warm pool to take from; image and size may then be left out. */
  pool?: string;
  /** Catalog name or path. */
  image?: string;
  vcpus?: number;
  memory_mib?: number;
  disk_size_gib?: number;
  /** Deleted this long after the launch; 0 is no limit. */
  ttl_seconds?: number;
  /** The host it must run on. */
  node?: string;
  /** Labels the host must have. */
  nodeSelector?: Record<string, string>;
  /** The same as nodeSelector. */
  node_selector?: Record<string, string>;
  labels?: Record<string, string>;
  backend?: string;
  reschedulable?: boolean;
  apple?: Apple;
  cloud_init?: CloudInit;
  network?: Network;
  networks?: NetworkRef[];
  extra_disks?: ExtraDisk[];
  security_profile?: "" | "standard" | "measured" | "confidential-snp" | "confidential-tdx";
  balloon?: BalloonDevice;
};

/** Settings of guests on Macs. */
export type Apple = {
  guest_os?: string;
  networks?: NetworkRef[];
  vmnet?: string;
  bridge_interface?: string;
  rosetta?: boolean;
  nested_virtualization?: boolean;
};

/** First-boot configuration. */
export type CloudInit = {
  hostname?: string;
  user?: string;
  ssh_authorized_keys?: string[];
  packages?: string[];
  runcmd?: string[];
  write_files?: CloudInitFile[];
};

/** A file that first boot writes. */
export type CloudInitFile = {
  path: string;
  content?: string;
  /** Octal, such as 0644. */
  permissions?: string;
};

/** How a VM is connected. */
export type Network = {
  mode?: "" | "nat" | "bridge" | "vmnet" | "none";
  bridge?: string;
  forwards?: PortForward[];
};

/** A port of the host's loopback that leads to one of the guest. */
export type PortForward = {
  host_port: number;
  guest_port: number;
};

/** A network by name. */
export type NetworkRef = {
  name: string;
};

/** An empty disk beside the image's. */
export type ExtraDisk = {
  size_gib: number;
};

/** A memory balloon where it is not always there. */
export type BalloonDevice = {
  free_page_reporting?: boolean;
  deflate_on_oom?: boolean;
  stats_interval_secs?: number;
};

/** The VM. warm, pool and claim_ms are there only when it came out of a pool, cold_reason only when it did not. */
export type LaunchAnswer = {
  node: string;
  vm: VM;
  warm?: boolean;
  pool?: string;
  /** From the request to the hand-over. */
  claim_ms?: number;
  cold_reason?: string;
};

/** Where a launch would go. */
export type DryRunAnswer = {
  /** Null when it fits nowhere. */
  node: string | null;
  warm: boolean;
  /** The pool it would be taken from. */
  pool: string | null;
  /** Hosts counted by why each was ruled out. */
  reasons: Record<string, number>;
};

/** A merge patch: what is left out stays. */
export type VMPatch = {
  name?: string;
  /** Null removes a label. */
  labels?: Record<string, string | null>;
  /** Counted from now; null takes the limit off. */
  ttl_seconds?: number | null;
};

/** A command for the guest agent. */
export type ExecRequest = {
  /** Program and arguments; no shell. */
  argv: string[];
  env?: Record<string, string>;
  stdin?: string;
  /** 0 is 60. */
  timeout_secs?: number;
  /** Answer at once and let it run. */
  detach?: boolean;
};

/** What the command left; 1 MiB of each output at most. */
export type ExecAnswer = {
  exit_code: number;
  stdout: string;
  stderr: string;
  truncated: boolean;
  timed_out: boolean;
};

/** What one VM of a pool takes. */
export type Size = {
  vcpus: number;
  memory_mib: number;
  disk_size_gib?: number;
};

/** A pool to keep. */
export type PoolRequest = {
  name: string;
  /** Catalog name. */
  image: string;
  /** The owner; only the operator may name one. Left out: shared. */
  tenant?: string;
  /** Spares to keep ready; 1 when left out, 0 pauses. */
  min_ready?: number | null;
  /** Spares and taken VMs together; min(100, max(4 min_ready, min_ready + 4)) while left out. */
  max_total?: number | null;
  vcpus?: number;
  memory_mib?: number;
  disk_size_gib?: number;
  node_selector?: Record<string, string>;
  /** Hosts the pool may use; none given: any. */
  nodes?: string[];
  /** When a spare counts as ready; agent where the image has one. */
  readiness?: "" | "agent" | "running";
};

/** A merge patch: what is left out stays, null puts a field back to its default. Image and size never change here: see roll. */
export type PoolPatch = {
  min_ready?: number | null;
  max_total?: number | null;
  node_selector?: Record<string, string> | null;
  nodes?: string[] | null;
};

/** Moves a pool to another image. */
export type RollRequest = {
  /** Catalog name. */
  image: string;
  /** Spares replaced at a time; 1 when left out. */
  max_unavailable?: number | null;
  /** Whether spares of the old image are still handed out. */
  stale_use?: "" | "allow" | "never";
};

/** A warm pool with its status and its spares. */
export type Pool = {
  name: string;
  /** The tenant, or operator. */
  owner: string;
  /** Null is a shared pool. */
  tenant: string | null;
  image: string;
  guest_os: "linux" | "macos";
  size: Size;
  min_ready: number;
  max_total: number;
  /** False while max_total follows min_ready. */
  max_total_set: boolean;
  node_selector: Record<string, string>;
  nodes: string[];
  readiness: "agent" | "running";
  created_at: Time;
  /** Index of its last change; its ETag. */
  version: number;
  status: PoolStatus;
  warm: WarmVM[];
  /** Advice, at creation. */
  note?: string;
};

/** How a pool is doing. */
export type PoolStatus = {
  state: "ready" | "filling" | "backing_off" | "paused";
  ready: number;
  booting: number;
  /** Spares of an image the pool has left. */
  stale: number;
  claimed_running: number;
  claimed_24h: number;
  avg_claim_ms: number;
  last_claim_at: Time;
  last_fill_at: Time;
  last_error: string | null;
  backoff_until: Time;
  wait_reason: "no_capacity" | "boot_failed" | "max_total" | "macos_limit" | "pressure" | "image" | "quota" | null;
  /** Hosts counted by why each was ruled out. */
  reasons?: Record<string, number>;
};

/** A spare. */
export type WarmVM = {
  node: string;
  id: string;
  name: string;
  state: "booting" | "ready";
  image: string;
  since: Time;
};

/** What VMs boot from, and the size they take unless told otherwise. */
export type Image = {
  name: string;
  /** As the backend understands it. */
  path: string;
  guest_os: "linux" | "macos";
  title: string;
  vcpus: number;
  memory_mib: number;
  disk_size_gib: number;
  /** It holds the guest agent. */
  has_agent: boolean;
  created_at: Time;
  /** Index of its last change; its ETag. */
  version: number;
};

/** A catalog entry. */
export type ImageRequest = {
  name: string;
  path: string;
  /** linux when left out. */
  guest_os?: "" | "linux" | "macos";
  title?: string;
  /** 1 when left out. */
  vcpus?: number;
  /** 512 when left out. */
  memory_mib?: number;
  disk_size_gib?: number;
  has_agent?: boolean;
};

/** A merge patch: what is left out stays, null puts a field back to its default. It changes what later VMs boot. */
export type ImagePatch = {
  path?: string;
  title?: string | null;
  vcpus?: number | null;
  memory_mib?: number | null;
  disk_size_gib?: number | null;
  has_agent?: boolean | null;
};

/** A host's load as of its last beat. */
export type Density = {
  /** Null where the host has no such level. */
  host_pressure_level: "normal" | "warn" | "critical" | null;
  host_mem_available_mib: number;
  warm_slots_ready: number;
  active_sandboxes: number;
  paused_sandboxes: number;
  hibernated_sandboxes: number;
};

/** What only a Mac reports. */
export type AppleHost = {
  chip?: string;
  macos_guests: number;
  macos_limit: number;
};

/** What a host's daemon can do. */
export type Capabilities = {
  /** It can rename a running VM; without it the host holds no spares. */
  rename: boolean;
};

/** A host. Free amounts are what placement may still use. */
export type Node = {
  name: string;
  uuid: string;
  url: string;
  state: "healthy" | "suspect" | "unreachable" | "lost";
  /** Why it is cordoned. */
  reason?: string;
  cordoned: boolean;
  draining: boolean;
  lease: string | null;
  /** The first is what auto means there. */
  backends: string[];
  capabilities: Capabilities;
  vcpus_total: number;
  memory_mib_total: number;
  cpu_overcommit: number;
  vm_count: number;
  free_vcpus: number;
  free_memory_mib: number;
  free_macos_guests: number;
  labels: Record<string, string>;
  density: Density;
  apple: AppleHost | null;
  last_seen_at: Time;
  /** Index of its last change; its ETag. */
  version: number;
};

/** A merge patch: what is left out stays. Labels are the host's own. */
export type NodePatch = {
  cordoned?: boolean;
  reason?: string | null;
};

/** The fleet summed up. */
export type Capacity = {
  nodes: number;
  healthy: number;
  /** With overcommit. */
  vcpus_total: number;
  vcpus_free: number;
  memory_mib_total: number;
  memory_mib_free: number;
  macos_guests_total: number;
  macos_guests_free: number;
  vms: number;
};

/** Registration and heartbeat in one; sent to every replica. */
export type Register = {
  name: string;
  /** Of the host's data directory; survives restarts. */
  uuid: string;
  /** Changes when the host boots. */
  boot_id: string;
  /** Changes when the daemon starts. */
  instance: string;
  /** Counts the beats of one instance. */
  seq: number;
  /** Where the host's own API answers. */
  url: string;
  version?: string;
  backends: string[] | null;
  capabilities: Capabilities;
  vcpus_total: number;
  memory_mib_total: number;
  cpu_overcommit: number;
  vm_count: number;
  labels: Record<string, string> | null;
  density: Density;
  apple: AppleHost | null;
  images: string[] | null;
  vms_digest: string;
  /** There when the list differs from what this replica acknowledged. */
  vms?: ReportedVM[];
  /** vms is the whole list, also when it is empty. */
  has_vms?: boolean;
  /** The host's own secret, sent with a join token only. */
  credential?: string;
};

/** One VM of a report. One that ended is reported for an hour as gone. */
export type ReportedVM = {
  id: string;
  name: string;
  state: "placed" | "booting" | "running" | "deleting" | "gone" | "stopped" | "paused" | "failed" | "unknown" | "lost";
  reason?: string;
  guest_os?: string;
  vcpus: number;
  memory_mib: number;
  ip?: string;
  /** The guest agent has answered since the last start. */
  agent: boolean;
  /** Of the central that ordered it; left out for one made on the host. */
  cluster?: string;
  ended_ms_ago?: number;
};

/** When to beat next, and where all replicas are. */
export type RegisterAnswer = {
  ok: boolean;
  next_in_ms: number;
  /** Send the whole list with the next beat. */
  want_vms: boolean;
  replicas: string[];
};

/** Permission for a host or a replica to join. */
export type JoinTokenRequest = {
  kind: "node" | "replica";
  /** A shell pattern of names; * when left out. */
  name_pattern?: string;
  /** 1 when left out. */
  uses?: number;
  /** 3600 when left out. */
  expires_in_secs?: number;
};

/** The token is shown once. */
export type JoinToken = {
  id: string;
  token: string;
  kind: "node" | "replica";
  name_pattern: string;
  uses: number;
  expires_at: Time;
};

/** What a tenant may hold at once. Null, or in a request left out, is no limit; 0 is none. */
export type Quota = {
  max_vms?: number | null;
  max_vcpus?: number | null;
  max_memory_mib?: number | null;
  max_macos_guests?: number | null;
  max_leases?: number | null;
  max_pools?: number | null;
};

/** What a tenant holds now. */
export type Holding = {
  vms: number;
  vcpus: number;
  memory_mib: number;
  macos_guests: number;
  leases: number;
  pools: number;
};

/** One who owns VMs, pools and leases. */
export type Tenant = {
  name: string;
  quota: Quota;
  /** Of VMs launched without a limit of their own; null is none. */
  default_ttl_seconds: number | null;
  /** The longest that a VM may be given; null is no limit. */
  max_ttl_seconds: number | null;
  created_at: Time;
  /** Index of its last change; its ETag. */
  version: number;
};

/** A tenant to add. */
export type TenantRequest = {
  name: string;
  quota?: Quota;
  default_ttl_seconds?: number | null;
  max_ttl_seconds?: number | null;
};

/** A merge patch: what is left out stays, null takes a limit off. */
export type TenantPatch = {
  quota?: QuotaPatch;
  default_ttl_seconds?: number | null;
  max_ttl_seconds?: number | null;
};

/** Single limits to change. What a tenant holds already it keeps. */
export type QuotaPatch = {
  max_vms?: number | null;
  max_vcpus?: number | null;
  max_memory_mib?: number | null;
  max_macos_guests?: number | null;
  max_leases?: number | null;
  max_pools?: number | null;
};

/** A key to make. A tenant's is tenant or viewer, the operator's is operator or viewer. */
export type KeyRequest = {
  role: "operator" | "viewer" | "tenant";
  /** 0 or left out: it does not expire. */
  expires_in_secs?: number;
};

/** An API key. */
export type Key = {
  id: string;
  /** Whose it is; null is the operator. */
  tenant: string | null;
  role: "operator" | "viewer" | "tenant";
  /** The bearer token; only in the answer that made it. */
  secret?: string;
  created_at: Time;
  expires_at: Time;
  last_used_at: Time;
};

/** What a tenant holds now, beside its quota. */
export type TenantUsage = {
  tenant: string;
  quota: Quota;
  used: Holding;
};

/** What the operator allows. */
export type Policy = {
  /** Tenants may take VMs from shared pools. */
  allow_shared_pool_claims: boolean;
  /** A tenant's macOS guests run on Macs it leases only. */
  require_lease_for_macos: boolean;
  /** Tenants' VMs share no network, so no tenant takes a VM from a shared pool. */
  isolate_tenant_networks: boolean;
  /** The minimum term of later leases of hosts that can run macOS. */
  min_lease_hours: number;
  /** Spares that one host starts at a time. */
  max_boots_per_node: number;
  /** Index of its last change; its ETag. */
  version: number;
};

/** A merge patch: what is left out stays, null puts a field back to its default. */
export type PolicyPatch = {
  allow_shared_pool_claims?: boolean | null;
  require_lease_for_macos?: boolean | null;
  isolate_tenant_networks?: boolean | null;
  min_lease_hours?: number | null;
  max_boots_per_node?: number | null;
};

/** Whole hosts given to one tenant. */
export type Lease = {
  id: string;
  tenant: string;
  nodes: string[];
  state: "pending" | "active" | "ending" | "scrubbing" | "scrub_failed" | "ended";
  starts_at: Time;
  ends_at: Time;
  earliest_end: Time;
  auto_renew: boolean;
  /** Why it is in this state. */
  reason?: string;
  /** Ids of the VMs it waits for. */
  blocked_by: string[];
  scrubs?: Scrub[];
  created_at: Time;
  /** Index of its last change; its ETag. */
  version: number;
};

/** The cleaning of one host after a lease. */
export type Scrub = {
  node: string;
  state: "running" | "done" | "failed";
  started_at: Time;
  /** Why it failed. */
  reason?: string;
};

/** A lease to give: node, or node_selector with count; duration or ends_at. */
export type LeaseRequest = {
  /** Who gets the hosts. A tenant's key leaves it out. */
  tenant?: string;
  /** The host. */
  node?: string;
  /** Labels the hosts must have. */
  node_selector?: Record<string, string>;
  /** How many hosts; 1 when left out. */
  count?: number;
  /** Such as 90m, 2h, 7d or 1d12h. */
  duration?: string;
  ends_at?: Time;
  auto_renew?: boolean;
  /** Wait until others' VMs are off, instead of refusing. */
  drain?: boolean;
};

/** A merge patch: what is left out stays. */
export type LeasePatch = {
  ends_at?: Time;
  auto_renew?: boolean;
};

/** What later stretches are charged, in millionths of the currency. What has no price is free. */
export type Prices = {
  currency: string;
  vm: VMPrice[];
  lease: LeasePrice[];
  /** Of idle spares of shared pools. */
  pool: VMPrice[];
  /** Index of its last change; its ETag. */
  version?: number;
};

/** The price of VMs of one guest OS by their size. */
export type VMPrice = {
  guest_os: "linux" | "macos";
  vcpu_hour_micros: number;
  gib_hour_micros: number;
  /** Charged on hosts that the tenant leases, too. */
  on_leased: boolean;
};

/** The price of a leased host. Of several the first that fits counts. */
export type LeasePrice = {
  /** KEY=VALUE that the host must have; empty is any host. */
  label: string;
  hour_micros: number;
};

/** What a stretch is charged, as it was when it was opened. */
export type Rate = {
  vcpu_hour_micros: number;
  gib_hour_micros: number;
  hour_micros: number;
};

/** One billed stretch, from started_at up to and without ended_at. */
export type LedgerRow = {
  id: string;
  /** Who pays; null is the operator. */
  tenant: string | null;
  kind: "vm" | "lease" | "pool" | "adjustment";
  vm_id: string;
  lease_id: string;
  name: string;
  node: string;
  pool: string;
  guest_os: string;
  vcpus: number;
  memory_mib: number;
  started_at: Time;
  ended_at: Time;
  end_reason: string;
  rate: Rate;
  /** Set when it closes, rounded down once. */
  amount_micros: number;
};

/** Money given or taken. */
export type AdjustmentRequest = {
  tenant: string;
  /** Below 0 it is given. */
  amount_micros: number;
  reason: string;
};

/** A sum of stretches. What is not grouped by is empty. */
export type UsageItem = {
  tenant: string | null;
  pool: string;
  /** YYYY-MM-DD in UTC. */
  day: string;
  vm_seconds: number;
  vcpu_seconds: number;
  gib_seconds: number;
  lease_seconds: number;
  amount_micros: number;
};

/** What was used. */
export type Usage = {
  items: UsageItem[];
  total: UsageItem;
};

/** One page. */
export type VMList = {
  items: VM[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};

/** One page. */
export type PoolList = {
  items: Pool[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};

/** One page. */
export type ImageList = {
  items: Image[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};

/** One page. */
export type NodeList = {
  items: Node[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};

/** One page. */
export type ActivityList = {
  items: Activity[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};

/** One page. */
export type TenantList = {
  items: Tenant[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};

/** One page. */
export type KeyList = {
  items: Key[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};

/** One page. */
export type LeaseList = {
  items: Lease[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};

/** One page. */
export type LedgerList = {
  items: LedgerRow[];
  /** Where the next page begins; null on the last. */
  next_cursor: string | null;
};
