package api

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// Bounds of values that callers choose.
const (
	MaxVCPUs        = 512
	MaxMemoryMiB    = 16 << 20 // 16 TiB
	MaxDiskGiB      = 64 << 10
	MaxTTLSeconds   = 366 * 24 * 3600
	MaxLabels       = 32
	MaxLabelKey     = 63
	MaxLabelValue   = 255
	MaxSelector     = 16
	MaxVMName       = 63
	MaxPoolName     = 40
	MaxKeyLength    = 255
	maxPath         = 1024
	maxTitle        = 200
	maxPoolNodes    = 64
	maxKeepFailed   = 24 * 3600
	maxReasonLength = 500
)

// SecurityProfiles are the values of security_profile.
var SecurityProfiles = [...]string{"standard", "measured", "confidential-snp", "confidential-tdx"}

// isName says whether s is 1 to longest characters of a-z 0-9 -.
func isName(s string, longest int) bool {
	if s == "" || len(s) > longest {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// CheckName refuses a name that is not 1 to longest characters of a-z 0-9 -.
func CheckName(field, s string, longest int) error {
	if !isName(s, longest) {
		return Invalid(field, "%s must be 1-%d characters of a-z, 0-9 and -", field, longest)
	}
	return nil
}

// CheckKey refuses an idempotency key that is empty, too long, or not printable ASCII.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKeyLength {
		return Invalid(HeaderIdempotencyKey, "%s must have 1-%d characters", HeaderIdempotencyKey, MaxKeyLength)
	}
	for i := range len(key) {
		if key[i] < 0x21 || key[i] > 0x7e {
			return Invalid(HeaderIdempotencyKey, "%s must be printable ASCII without spaces", HeaderIdempotencyKey)
		}
	}
	return nil
}

// CheckUUID refuses what is not 8-4-4-4-12 lower-case hexadecimal digits.
func CheckUUID(field, s string) error {
	ok := len(s) == 36
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			ok = c == '-'
		default:
			ok = c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		}
	}
	if !ok {
		return Invalid(field, "%s must be a UUID in lower case", field)
	}
	return nil
}

// CheckLabels refuses too many labels, keys or values that are too long, and keys that FluxVM keeps for itself.
func CheckLabels(field string, labels map[string]string) error {
	if len(labels) > MaxLabels {
		return Invalid(field, "%s may hold %d entries at most", field, MaxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if err := checkLabel(field, k, labels[k]); err != nil {
			return err
		}
		if strings.HasPrefix(k, LabelPrefix) {
			return Invalid(field, "keys of %s may not begin with %s, which FluxVM keeps for itself", field, LabelPrefix)
		}
	}
	return nil
}

func checkLabel(field, k, v string) error {
	if k == "" || len(k) > MaxLabelKey || strings.ContainsFunc(k, notLabelKey) {
		return Invalid(field, "keys of %s must be 1-%d characters of letters, digits and . _ - /", field, MaxLabelKey)
	}
	if len(v) > MaxLabelValue || strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return Invalid(field, "values of %s must be printable and of %d bytes at most", field, MaxLabelValue)
	}
	return nil
}

func notLabelKey(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-/", r)
}

// CheckSelector refuses selectors with too many terms or malformed ones.
func CheckSelector(field string, selector map[string]string) error {
	if len(selector) > MaxSelector {
		return Invalid(field, "%s may hold %d terms at most", field, MaxSelector)
	}
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		if err := checkLabel(field, k, selector[k]); err != nil {
			return err
		}
	}
	return nil
}

// Matches says whether labels hold every term of the selector.
func Matches(selector, labels map[string]string) bool {
	for k, want := range selector {
		if v, ok := labels[k]; !ok || v != want {
			return false
		}
	}
	return true
}

// numberRule bounds one whole number of a body; zero is allowed and means "the default".
type numberRule struct {
	field string
	value int64
	most  int64
}

func checkNumbers(rules ...numberRule) error {
	for _, r := range rules {
		if r.value < 0 || r.value > r.most {
			return Invalid(r.field, "%s must be a whole number from 0 to %d", r.field, r.most)
		}
	}
	return nil
}

// first gives the first error that is not nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkGuestOS(field, s string) error {
	if s != "" && s != GuestLinux && s != GuestMacOS {
		return Invalid(field, "%s must be %s or %s", field, GuestLinux, GuestMacOS)
	}
	return nil
}

func checkText(field, s string, longest int, needed bool) error {
	if needed && s == "" {
		return Invalid(field, "%s is required", field)
	}
	if len(s) > longest || strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 }) {
		return Invalid(field, "%s must be printable and of %d bytes at most", field, longest)
	}
	return nil
}

// Selector is the node selector in whichever spelling it came.
func (r *LaunchRequest) Selector() map[string]string {
	if r.NodeSelector != nil {
		return r.NodeSelector
	}
	return r.NodeSelectorSnake
}

// Check refuses values that no fleet could take. What depends on the fleet's state is checked there.
func (r *LaunchRequest) Check() error {
	var named error
	if r.Name != "" {
		named = CheckName("name", r.Name, MaxVMName)
	}
	if r.NodeSelector != nil && r.NodeSelectorSnake != nil {
		return Invalid("nodeSelector", "give nodeSelector or node_selector, not both")
	}
	if r.Image == "" && r.Pool == "" {
		return Invalid("image", "image is required unless pool names a warm pool")
	}
	apple := r.Apple
	if apple == nil {
		apple = &Apple{}
	}
	profile := error(nil)
	if r.SecurityProfile != "" && !slices.Contains(SecurityProfiles[:], r.SecurityProfile) {
		profile = Invalid("security_profile", "security_profile must be one of %s", strings.Join(SecurityProfiles[:], ", "))
	}
	return first(named,
		checkText("image", r.Image, maxPath, false), checkText("pool", r.Pool, MaxPoolName, false), checkText("node", r.Node, MaxVMName, false),
		checkText("tenant", r.Tenant, MaxPoolName, false), checkBackend(r.Backend),
		checkNumbers(numberRule{"vcpus", int64(r.VCPUs), MaxVCPUs}, numberRule{"memory_mib", r.MemoryMiB, MaxMemoryMiB},
			numberRule{"disk_size_gib", r.DiskSizeGiB, MaxDiskGiB}, numberRule{"ttl_seconds", r.TTLSeconds, MaxTTLSeconds}, numberRule{"wait_for_capacity_secs", r.WaitForCapacitySecs, MaxWaitForCapacitySecs}),
		CheckLabels("labels", r.Labels), CheckSelector("nodeSelector", r.Selector()), checkGuestOS("apple.guest_os", apple.GuestOS), profile,
		r.Network.check(), checkDisks(r.ExtraDisks), r.Claim.Check())
}

func checkBackend(s string) error {
	switch s {
	case "", BackendAuto, BackendVZ, BackendFluxVM, BackendQEMU, BackendProcbox, BackendSim:
		return nil
	}
	return Invalid("backend", "backend must be auto, vz, flux-vm, qemu, procbox or sim")
}

func (n *Network) check() error {
	if n == nil {
		return nil
	}
	switch n.Mode {
	case "", "nat", "bridge", "vmnet", "none":
	default:
		return Invalid("network.mode", "network.mode must be nat, bridge, vmnet or none")
	}
	taken := map[int]bool{}
	for _, f := range n.Forwards {
		if f.HostPort < 0 || f.HostPort > 65535 || f.GuestPort < 1 || f.GuestPort > 65535 {
			return Invalid("network.forwards", "ports of network.forwards must be 1-65535")
		}
		if taken[f.HostPort] {
			return Invalid("network.forwards", "host_port %d stands in network.forwards twice; each needs one of its own", f.HostPort)
		}
		taken[f.HostPort] = true
	}
	return nil
}

func checkDisks(disks []ExtraDisk) error {
	if len(disks) > 8 {
		return Invalid("extra_disks", "extra_disks may hold 8 disks at most")
	}
	for _, d := range disks {
		if d.SizeGiB < 1 || d.SizeGiB > MaxDiskGiB {
			return Invalid("extra_disks", "size_gib of extra_disks must be from 1 to %d", MaxDiskGiB)
		}
	}
	return nil
}

// ColdField names the first field that no booted VM can have; empty when a warm VM would do.
// poolBackend is not known here: a backend that is named rules a warm VM out only when it differs (the caller checks).
func (r *LaunchRequest) ColdField() string {
	switch {
	case r.CloudInit != nil:
		return "cloud_init"
	case r.Network != nil && r.Network.Mode != "" && r.Network.Mode != "nat", r.Network != nil && len(r.Network.Forwards) > 0:
		return "network"
	case r.Apple != nil && len(r.Apple.Networks) > 0:
		return "apple.networks"
	case r.Apple != nil && r.Apple.VMNet != "":
		return "apple.vmnet"
	case r.Apple != nil && r.Apple.BridgeInterface != "":
		return "apple.bridge_interface"
	case r.Apple != nil && r.Apple.Rosetta:
		return "apple.rosetta"
	case r.Apple != nil && r.Apple.NestedVirtualization:
		return "apple.nested_virtualization"
	case len(r.Networks) > 0:
		return "networks"
	case len(r.ExtraDisks) > 0:
		return "extra_disks"
	case r.SecurityProfile != "" && r.SecurityProfile != "standard":
		return "security_profile"
	case r.Reschedulable:
		return "reschedulable"
	case r.Balloon != nil:
		return "balloon"
	}
	return ""
}

// Check refuses values that no pool could have.
func (r *PoolRequest) Check() error {
	if err := first(CheckName("name", r.Name, MaxPoolName), checkText("image", r.Image, maxPath, true)); err != nil {
		return err
	}
	return first(checkPoolNumbers(r.MinReady, r.MaxTotal),
		checkNumbers(numberRule{"vcpus", int64(r.VCPUs), MaxVCPUs}, numberRule{"memory_mib", r.MemoryMiB, MaxMemoryMiB},
			numberRule{"disk_size_gib", r.DiskSizeGiB, MaxDiskGiB}, numberRule{"keep_failed_seconds", r.KeepFailedSeconds, maxKeepFailed},
			numberRule{"max_age_seconds", r.MaxAgeSeconds, MaxTTLSeconds}),
		CheckSelector("node_selector", r.NodeSelector), checkPoolNodes(r.Nodes), checkReadiness(r.Readiness))
}

// Check refuses values that no pool could have.
func (p *PoolPatch) Check() error {
	var minReady, maxTotal *int
	if p.MinReady.Set && !p.MinReady.Null {
		minReady = &p.MinReady.V
	}
	if p.MaxTotal.Set && !p.MaxTotal.Null {
		maxTotal = &p.MaxTotal.V
	}
	return first(checkPoolNumbers(minReady, maxTotal), CheckSelector("node_selector", p.NodeSelector.V), checkPoolNodes(p.Nodes.V),
		checkNumbers(numberRule{"keep_failed_seconds", p.KeepFailedSeconds.V, maxKeepFailed}, numberRule{"max_age_seconds", p.MaxAgeSeconds.V, MaxTTLSeconds}))
}

// Check refuses values that no roll could have.
func (r *RollRequest) Check() error {
	if r.MaxUnavailable != nil && (*r.MaxUnavailable < 1 || *r.MaxUnavailable > MaxMinReady) {
		return Invalid("max_unavailable", "max_unavailable must be from 1 to %d", MaxMinReady)
	}
	if r.StaleUse != "" && r.StaleUse != "allow" && r.StaleUse != "never" {
		return Invalid("stale_use", "stale_use must be allow or never")
	}
	if r.Abort && (r.Image != "" || r.StaleUse != "" || r.MaxUnavailable != nil) {
		return Invalid("abort", "abort goes back to the image before and takes nothing else; leave the rest out")
	}
	return checkText("image", r.Image, maxPath, !r.Abort)
}

func checkPoolNumbers(minReady, maxTotal *int) error {
	if minReady != nil && (*minReady < 0 || *minReady > MaxMinReady) {
		return Invalid("min_ready", "min_ready must be from 0 to %d", MaxMinReady)
	}
	if maxTotal != nil && (*maxTotal < 0 || *maxTotal > MaxMaxTotal) {
		return Invalid("max_total", "max_total must be from 0 to %d", MaxMaxTotal)
	}
	return nil
}

func checkPoolNodes(nodes []string) error {
	if len(nodes) > maxPoolNodes {
		return Invalid("nodes", "nodes may name %d nodes at most", maxPoolNodes)
	}
	for _, n := range nodes {
		if err := CheckNodeName("nodes", n); err != nil {
			return err
		}
	}
	return nil
}

func checkReadiness(s string) error {
	if s != "" && s != ReadinessAgent && s != ReadinessRunning {
		return Invalid("readiness", "readiness must be %s or %s", ReadinessAgent, ReadinessRunning)
	}
	return nil
}

// CheckNodeName refuses a name that is no host name: 1-63 characters of letters, digits, . and -.
func CheckNodeName(field, s string) error {
	if s == "" || len(s) > 63 || strings.Contains(s, "..") || strings.ContainsFunc(s, func(r rune) bool { return notLabelKey(r) || r == '/' || r == '_' }) {
		return Invalid(field, "%s must hold host names: 1-63 letters, digits, . and -", field)
	}
	return nil
}

// Check refuses values that no image could have.
func (r *ImageRequest) Check() error {
	return first(checkImageName(r.Name), checkText("path", r.Path, maxPath, true), checkGuestOS("guest_os", r.GuestOS), checkText("title", r.Title, maxTitle, false),
		checkNumbers(numberRule{"vcpus", int64(r.VCPUs), MaxVCPUs}, numberRule{"memory_mib", r.MemoryMiB, MaxMemoryMiB}, numberRule{"disk_size_gib", r.DiskSizeGiB, MaxDiskGiB}))
}

func checkImageName(s string) error {
	if s == "" || len(s) > MaxVMName || strings.Contains(s, "..") || strings.ContainsFunc(s, func(r rune) bool { return notLabelKey(r) || r == '/' }) {
		return Invalid("name", "name must be 1-%d letters, digits and . _ -", MaxVMName)
	}
	return nil
}

// Check refuses values that no image could have.
func (p *ImagePatch) Check() error {
	if p.Path.Null || p.Path.Set && p.Path.V == "" {
		return Invalid("path", "path cannot be empty")
	}
	return first(checkText("path", p.Path.V, maxPath, false), checkText("title", p.Title.V, maxTitle, false),
		checkNumbers(numberRule{"vcpus", int64(p.VCPUs.V), MaxVCPUs}, numberRule{"memory_mib", p.MemoryMiB.V, MaxMemoryMiB}, numberRule{"disk_size_gib", p.DiskSizeGiB.V, MaxDiskGiB}))
}

// Check refuses values that no VM could have.
func (p *VMPatch) Check() error {
	if p.Name.Set {
		if err := CheckName("name", p.Name.V, MaxVMName); err != nil {
			return err
		}
	}
	if p.TTLSeconds.Set && !p.TTLSeconds.Null && (p.TTLSeconds.V < 1 || p.TTLSeconds.V > MaxTTLSeconds) {
		return Invalid("ttl_seconds", "ttl_seconds must be from 1 to %d, or null for no limit", MaxTTLSeconds)
	}
	set := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(p.Labels.V)) {
		if v := p.Labels.V[k]; v != nil {
			set[k] = *v
		} else {
			set[k] = ""
		}
	}
	return CheckLabels("labels", set)
}

// Check refuses values that no node could have.
func (p *NodePatch) Check() error {
	if p.Cordoned.Null {
		return Invalid("cordoned", "cordoned must be true or false")
	}
	return checkText("reason", p.Reason.V, maxReasonLength, false)
}

// Check refuses a drain that cannot be meant.
func (r *DrainRequest) Check() error {
	reason := ""
	if r.Reason != nil {
		reason = *r.Reason
	}
	return first(checkText("reason", reason, maxReasonLength, false), checkNumbers(numberRule{"deadline_seconds", r.DeadlineSeconds, MaxDrainSeconds}))
}

// Check refuses a join token nobody could use.
func (r *JoinTokenRequest) Check() error {
	if r.Kind != "node" && r.Kind != "replica" {
		return Invalid("kind", "kind must be node or replica")
	}
	if _, err := path.Match(r.NamePattern, "x"); err != nil {
		return Invalid("name_pattern", "name_pattern must be a shell pattern such as studio-*")
	}
	return first(checkText("name_pattern", r.NamePattern, maxTitle, false),
		checkNumbers(numberRule{"uses", int64(r.Uses), 1000}, numberRule{"expires_in_secs", r.ExpiresInSecs, 30 * 24 * 3600}))
}

// Check refuses a report that no node could send.
func (r *Register) Check() error {
	if err := first(CheckNodeName("name", r.Name), CheckUUID("uuid", r.UUID), checkText("boot_id", r.BootID, 128, true), checkText("instance", r.Instance, 128, true),
		checkText("url", r.URL, maxPath, true), CheckSelector("labels", nil)); err != nil {
		return err
	}
	if len(r.Labels) > MaxLabels {
		return Invalid("labels", "labels may hold %d entries at most", MaxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		if err := checkLabel("labels", k, r.Labels[k]); err != nil {
			return err
		}
	}
	if level := r.Density.HostPressureLevel; level != nil && *level != PressureNormal && *level != PressureWarn && *level != PressureCritical {
		return Invalid("density.host_pressure_level", "density.host_pressure_level must be normal, warn, critical or null")
	}
	if err := r.checkLists(); err != nil {
		return err
	}
	d := &r.Density
	return checkNumbers(numberRule{"vcpus_total", int64(r.VCPUsTotal), mostVCPUsOfHost}, numberRule{"memory_mib_total", r.MemoryMiBTotal, mostMiBOfHost},
		numberRule{"cpu_overcommit", int64(r.CPUOvercommit), 100}, numberRule{"vm_count", int64(r.VMCount), mostVCPUsOfHost},
		numberRule{"density.host_mem_available_mib", d.HostMemAvailableMiB, mostMiBOfHost}, numberRule{"density.warm_slots_ready", int64(d.WarmSlotsReady), mostVCPUsOfHost},
		numberRule{"density.active_sandboxes", int64(d.ActiveSandboxes), mostVCPUsOfHost}, numberRule{"density.paused_sandboxes", int64(d.PausedSandboxes), mostVCPUsOfHost},
		numberRule{"density.hibernated_sandboxes", int64(d.HibernatedSandboxes), mostVCPUsOfHost})
}

// checkLists bounds what a report lists: it is kept in memory, some of it in the log, and ids are parts of paths.
func (r *Register) checkLists() error {
	const mostBackends, mostImages, longestWord, longestPEM = 16, 4096, 128, 16 << 10
	if len(r.Backends) > mostBackends || len(r.Images) > mostImages || len(r.Confinement) > mostBackends {
		return Invalid("backends", "backends and confinement may hold %d entries and images %d at most", mostBackends, mostImages)
	}
	err := first(checkText("version", r.Version, longestWord, false), checkText("vms_digest", r.VMsDigest, longestWord, false), checkText("credential", r.Credential, 2*longestWord, false))
	if len(r.CertificateRequest) > longestPEM {
		err = first(err, Invalid("certificate_request", "certificate_request may have %d bytes at most", longestPEM))
	}
	if r.Apple != nil {
		err = first(err, checkText("apple.chip", r.Apple.Chip, longestWord, false))
	}
	for _, b := range r.Backends {
		err = first(err, checkText("backends", b, longestWord, true))
	}
	for backend, words := range r.Confinement {
		if len(backend)+len(words) > longestWord || strings.ContainsFunc(backend, func(r rune) bool { return r < 0x20 }) {
			err = first(err, Invalid("confinement", "confinement must name backends and hold %d words at most", longestWord))
		}
		for _, word := range words {
			err = first(err, checkText("confinement", word, longestWord, false))
		}
	}
	for _, path := range r.Images { // a driver names them, in whatever characters its host has
		if len(path) > maxPath {
			err = first(err, Invalid("images", "images must be of %d bytes at most each", maxPath))
		}
	}
	for i := range r.VMs {
		vm := &r.VMs[i]
		if strings.ContainsAny(vm.ID, "/\\%?#") || strings.Trim(vm.ID, ".") == "" {
			err = first(err, Invalid("vms.id", "vms.id must be the id of a VM"))
		}
		err = first(err, checkText("vms.id", vm.ID, longestWord, true), checkText("vms.name", vm.Name, 2*longestWord, false), checkText("vms.state", string(vm.State), longestWord, false),
			checkText("vms.guest_os", vm.GuestOS, longestWord, false), checkText("vms.cluster", vm.Cluster, longestWord, false),
			checkNumbers(numberRule{"vms.vcpus", int64(vm.VCPUs), mostVCPUsOfHost}, numberRule{"vms.memory_mib", vm.MemoryMiB, mostMiBOfHost}))
		if err != nil {
			return err
		}
	}
	return err
}

// What no host has more of; sums over a report stay far from overflow.
const (
	mostVCPUsOfHost = 1 << 20
	mostMiBOfHost   = 1 << 40
)

// Check refuses a command that cannot be run.
func (r *ExecRequest) Check() error {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return Invalid("argv", "argv must name a program, such as [\"uname\", \"-a\"]")
	}
	return checkNumbers(numberRule{"timeout_secs", int64(r.TimeoutSecs), 24 * 3600})
}

// Check refuses values that no machine could have; what a backend or host cannot do is refused there.
func (r *MachineRequest) Check() error {
	var named error
	if r.Name != "" {
		named = CheckName("name", r.Name, MaxVMName)
	}
	if r.MemoryMiB < 1 {
		return Invalid("memory_mib", "memory_mib must be at least 1")
	}
	profile := error(nil)
	if r.SecurityProfile != "" && !slices.Contains(SecurityProfiles[:], r.SecurityProfile) {
		profile = Invalid("security_profile", "security_profile must be one of %s", strings.Join(SecurityProfiles[:], ", "))
	}
	return first(CheckUUID("id", r.ID), named, checkBackend(r.Backend), checkText("image", r.Image, maxPath, false), checkGuestOS("guest_os", r.GuestOS),
		checkNumbers(numberRule{"vcpus", int64(r.VCPUs), MaxVCPUs}, numberRule{"memory_mib", r.MemoryMiB, MaxMemoryMiB}, numberRule{"disk_size_gib", r.DiskSizeGiB, MaxDiskGiB}),
		r.checkLabels(), r.Network.check(), checkDisks(r.ExtraDisks), profile)
}

// checkLabels allows FluxVM's own labels: central sets them on the machines that it orders.
func (r *MachineRequest) checkLabels() error {
	if len(r.Labels) > MaxLabels+8 {
		return Invalid("labels", "labels may hold %d entries at most", MaxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		if err := checkLabel("labels", k, r.Labels[k]); err != nil {
			return err
		}
	}
	return nil
}
