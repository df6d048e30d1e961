package provider

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// fakeFleet answers as central does, with one host that boots images of the kind sim:?boot_ms=…&fail=… . Its
// passes run with each request, so nothing happens behind a test's back.
type fakeFleet struct {
	mu       sync.Mutex
	index    uint64
	images   map[string]api.Image
	pools    map[string]*fakePool
	vms      map[string]*fakeVM
	tenancy  fakeTenancy
	answers  map[string]fakeAnswer // by idempotency key
	lose     int                   // answers to drop after the work is done
	requests []string              // method, path and body of what changed something
	bodies   map[string]string     // by idempotency key
}

type fakePool struct {
	api.Pool
	maxSet bool
}

type fakeVM struct {
	api.VM
	spare   bool
	bornAt  time.Time
	bootMS  int
	fail    string
	goneFor time.Time // deleting until then
}

type fakeAnswer struct {
	status int
	body   []byte
}

func newFakeFleet(t *testing.T) (*fakeFleet, string) {
	f := &fakeFleet{images: map[string]api.Image{}, pools: map[string]*fakePool{}, vms: map[string]*fakeVM{}, tenancy: newFakeTenancy(),
		answers: map[string]fakeAnswer{}, bodies: map[string]string{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s.URL
}

// loseAnswers drops the next n answers to requests that change something, after the work is done.
func (f *fakeFleet) loseAnswers(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lose = n
}

// changes lists the requests that changed something.
func (f *fakeFleet) changes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

func (f *fakeFleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pass()
	status, body := f.answer(r, raw)
	f.pass()
	if r.Method != http.MethodGet {
		f.requests = append(f.requests, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(raw)))
		if f.lose > 0 {
			f.lose--
			panic(http.ErrAbortHandler)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the reader may be gone
}

func (f *fakeFleet) answer(r *http.Request, raw []byte) (int, []byte) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	caller, ok := f.tenancy.callers[token]
	if f.tenancy.caller = caller; !ok && token != "fvx_fake" {
		return problemOf(api.Errorf(api.CodeUnauthenticated, "a token is needed"))
	}
	key := r.Header.Get(api.HeaderIdempotencyKey)
	if r.Method == http.MethodPost {
		if key == "" {
			return problemOf(api.Errorf(api.CodeInvalid, "this test wants a key on every POST"))
		}
		if was, ok := f.answers[key]; ok {
			if f.bodies[key] != string(raw) {
				return problemOf(api.Errorf(api.CodeKeyReused, "the key had another body"))
			}
			if strings.HasSuffix(r.URL.Path, "/keys") {
				return problemOf(api.Errorf(api.CodeConflict, "a key was made under this Idempotency-Key, and its secret is shown only once"))
			}
			return was.status, was.body
		}
	}
	status, out, err := f.route(r, raw)
	if err != nil {
		return problemOf(err)
	}
	body := []byte{}
	if out != nil {
		body = mustJSON(out)
	}
	if r.Method == http.MethodPost {
		f.answers[key], f.bodies[key] = fakeAnswer{status, body}, string(raw)
	}
	return status, body
}

func mustJSON(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

func problemOf(err error) (int, []byte) {
	e, ok := err.(*api.Error)
	if !ok {
		e = api.Errorf(api.CodeInternal, "%v", err)
	}
	e = e.Filled("req-fake")
	return e.Status, mustJSON(e)
}

func (f *fakeFleet) route(r *http.Request, raw []byte) (int, any, error) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/fleet/"), "/")
	name := ""
	if len(parts) > 1 {
		name = parts[1]
	}
	switch r.Method + " " + parts[0] {
	case "GET cluster":
		return 200, api.Cluster{ID: "fake", Leader: "central-1", Replicas: []api.Replica{{Name: "central-1", Role: "leader", Healthy: true}}}, nil
	case "POST images":
		return f.createImage(raw)
	case "POST pools":
		return f.createPool(raw)
	case "POST vms":
		return f.launch(raw)
	case "GET vms":
		if name == "" {
			return 200, f.listVMs(r.URL.Query()), nil
		}
		return f.onVM(r.Method, name, raw)
	case "GET images", "PATCH images", "DELETE images":
		return f.onImage(r.Method, name, raw)
	case "GET pools", "PATCH pools", "DELETE pools":
		return f.onPool(r.Method, name, raw)
	case "PATCH vms", "DELETE vms":
		return f.onVM(r.Method, name, raw)
	}
	if status, out, err, ok := f.routeTenancy(r, parts, raw); ok {
		return status, out, err
	}
	return 0, nil, api.Errorf(api.CodeNotFound, "no route %s %s", r.Method, r.URL.Path)
}

func (f *fakeFleet) version() uint64 { f.index++; return f.index }

func (f *fakeFleet) createImage(raw []byte) (int, any, error) {
	var q api.ImageRequest
	if err := api.Decode(raw, &q); err != nil {
		return 0, nil, err
	}
	if err := q.Check(); err != nil {
		return 0, nil, err
	}
	if _, ok := f.images[q.Name]; ok {
		return 0, nil, api.Errorf(api.CodeNameTaken, "image %q exists; choose another name", q.Name)
	}
	image := api.Image{Name: q.Name, Path: q.Path, GuestOS: q.GuestOS, Title: q.Title, VCPUs: max(1, q.VCPUs), MemoryMiB: q.MemoryMiB,
		DiskSizeGiB: q.DiskSizeGiB, HasAgent: q.HasAgent, CreatedAt: api.TimeOf(time.Now()), Version: f.version()}
	if image.Title == "" {
		image.Title = image.Name
	}
	f.images[q.Name] = image
	return 201, image, nil
}

func (f *fakeFleet) onImage(method, name string, raw []byte) (int, any, error) {
	image, ok := f.images[name]
	if !ok {
		return 0, nil, api.Errorf(api.CodeNotFound, "there is no image %q", name)
	}
	switch method {
	case http.MethodDelete:
		delete(f.images, name)
		return 204, nil, nil
	case http.MethodPatch:
		var p api.ImagePatch
		if err := api.Decode(raw, &p); err != nil {
			return 0, nil, err
		}
		assign(&image.Path, p.Path)
		assign(&image.Title, p.Title)
		assign(&image.VCPUs, p.VCPUs)
		assign(&image.MemoryMiB, p.MemoryMiB)
		assign(&image.DiskSizeGiB, p.DiskSizeGiB)
		assign(&image.HasAgent, p.HasAgent)
		image.Version = f.version()
		f.images[name] = image
	}
	return 200, image, nil
}

func assign[V any](to *V, from api.Optional[V]) {
	if from.Set {
		*to = from.V
	}
}

func (f *fakeFleet) createPool(raw []byte) (int, any, error) {
	var q api.PoolRequest
	if err := api.Decode(raw, &q); err != nil {
		return 0, nil, err
	}
	if err := q.Check(); err != nil {
		return 0, nil, err
	}
	image, ok := f.images[q.Image]
	if !ok {
		return 0, nil, api.Invalid("image", "there is no image %q", q.Image)
	}
	if _, ok := f.pools[q.Name]; ok {
		return 0, nil, api.Errorf(api.CodeNameTaken, "pool %q exists; choose another name", q.Name)
	}
	if err := f.tenancy.known(q.Tenant); err != nil {
		return 0, nil, err
	}
	p := &fakePool{Pool: api.Pool{Name: q.Name, Owner: ownerOf(q.Tenant), Tenant: orNil(q.Tenant), Image: q.Image, GuestOS: image.GuestOS, MinReady: 1, Nodes: q.Nodes,
		NodeSelector: q.NodeSelector, Readiness: q.Readiness, CreatedAt: api.TimeOf(time.Now()), Version: f.version(),
		Size: api.Size{VCPUs: q.VCPUs, MemoryMiB: q.MemoryMiB, DiskSizeGiB: q.DiskSizeGiB}}}
	if p.Size.VCPUs == 0 {
		p.Size.VCPUs = image.VCPUs
	}
	if p.Size.MemoryMiB == 0 {
		p.Size.MemoryMiB = image.MemoryMiB
	}
	if p.Size.DiskSizeGiB == 0 {
		p.Size.DiskSizeGiB = image.DiskSizeGiB
	}
	if p.Readiness == "" {
		p.Readiness = api.ReadinessRunning
		if image.HasAgent {
			p.Readiness = api.ReadinessAgent
		}
	}
	if q.MinReady != nil {
		p.MinReady = *q.MinReady
	}
	if q.MaxTotal != nil {
		p.MaxTotal, p.maxSet = *q.MaxTotal, true
	}
	f.pools[q.Name] = p
	f.pass()
	return 201, f.poolView(p), nil
}

func (f *fakeFleet) onPool(method, name string, raw []byte) (int, any, error) {
	p, ok := f.pools[name]
	if !ok {
		return 0, nil, api.Errorf(api.CodeNotFound, "there is no pool %q", name)
	}
	switch method {
	case http.MethodDelete:
		delete(f.pools, name)
		for id, vm := range f.vms {
			switch {
			case !vm.spare || vm.Pool != name:
			case vm.Tenant != nil: // counts for its tenant until its host has confirmed the end
				vm.spare, vm.State, vm.goneFor = false, api.StateDeleting, time.Now().Add(400*time.Millisecond)
			default:
				delete(f.vms, id)
			}
		}
		return 204, nil, nil
	case http.MethodPatch:
		var q api.PoolPatch
		if err := api.Decode(raw, &q); err != nil {
			return 0, nil, err
		}
		assign(&p.MinReady, q.MinReady)
		assign(&p.NodeSelector, q.NodeSelector)
		assign(&p.Nodes, q.Nodes)
		if q.MaxTotal.Set {
			p.MaxTotal, p.maxSet = q.MaxTotal.V, !q.MaxTotal.Null
		}
		p.Version = f.version()
		f.pass()
	}
	return 200, f.poolView(p), nil
}

func (f *fakeFleet) poolView(p *fakePool) api.Pool {
	out := p.Pool
	out.Status = api.PoolStatus{State: api.PoolFilling}
	for _, id := range slices.Sorted(maps.Keys(f.vms)) {
		switch vm := f.vms[id]; {
		case vm.Pool != p.Name || !vm.spare:
		case vm.ready():
			out.Status.Ready++
		case vm.State == api.StateFailed:
			why, text := api.WaitBootFailed, "the guest did not boot"
			out.Status.State, out.Status.WaitReason, out.Status.LastError = api.PoolBackingOff, &why, &text
		default:
			out.Status.Booting++
		}
	}
	switch {
	case p.MinReady == 0:
		out.Status.State = api.PoolPaused
	case out.Status.Ready >= p.MinReady:
		out.Status.State = api.PoolReady
	case !fakeHostMatches(p.NodeSelector, p.Nodes):
		why, text := api.WaitNoCapacity, "no healthy, uncordoned nodes"
		out.Status.State, out.Status.WaitReason, out.Status.LastError = api.PoolBackingOff, &why, &text
		out.Status.Reasons = map[string]int{api.WhyLabel: 1}
	}
	return out
}

// fakeHostMatches says whether the one host, node-1, will do.
func fakeHostMatches(selector map[string]string, nodes []string) bool {
	return api.Matches(selector, map[string]string{api.LabelDevNode: "node-1"}) && (len(nodes) == 0 || slices.Contains(nodes, "node-1"))
}

// pass boots, fills, trims and expires.
func (f *fakeFleet) pass() {
	now := time.Now()
	f.passLeases(now)
	for id, vm := range f.vms {
		up := now.Sub(vm.bornAt) >= time.Duration(vm.bootMS)*time.Millisecond
		switch {
		case !vm.ExpiresAt.IsZero() && !now.Before(vm.ExpiresAt.Std()), vm.State == api.StateDeleting && now.After(vm.goneFor):
			delete(f.vms, id)
		case vm.State == api.StateBooting && up && vm.fail == "boot":
			vm.State, vm.Reason = api.StateFailed, "the guest did not boot"
		case vm.State == api.StateBooting && up:
			vm.State, vm.ReadyAt, vm.IP = api.StateRunning, api.TimeOf(now), "10.0.0.9"
			vm.Version = f.version()
		}
	}
	for _, p := range f.pools {
		if !p.maxSet {
			p.MaxTotal = int(derivedMaxTotal(int64(p.MinReady)))
		}
		var spares []string
		for id, vm := range f.vms {
			if vm.spare && vm.Pool == p.Name {
				spares = append(spares, id)
			}
		}
		for ; len(spares) > p.MinReady; spares = spares[1:] {
			delete(f.vms, spares[0])
		}
		for n := len(spares); n < p.MinReady && fakeHostMatches(p.NodeSelector, p.Nodes); n++ {
			vm := f.boot(p.Image, p.Size)
			vm.Name, vm.Pool, vm.spare, vm.Tenant = "warm-"+p.Name+"-"+vm.ID[:8], p.Name, true, p.Tenant
		}
	}
}

func (v *fakeVM) ready() bool { return v.State == api.StateRunning }

func (f *fakeFleet) boot(image string, size api.Size) *fakeVM {
	id := uuid.NewString()
	path := image
	if known, ok := f.images[image]; ok {
		path = known.Path
	}
	vm := &fakeVM{bornAt: time.Now(), VM: api.VM{ID: id, Name: "vm-" + id[:8], Node: "node-1", Backend: api.BackendSim, Image: image, GuestOS: api.GuestLinux,
		VCPUs: size.VCPUs, MemoryMiB: size.MemoryMiB, DiskSizeGiB: size.DiskSizeGiB, State: api.StateBooting, CreatedAt: api.TimeOf(time.Now()), Version: f.version()}}
	if _, q, ok := strings.Cut(path, "?"); ok {
		settings, err := url.ParseQuery(q)
		if err == nil {
			vm.bootMS, _ = strconv.Atoi(settings.Get("boot_ms")) // absent is 0
			vm.fail = settings.Get("fail")
		}
	}
	f.vms[id] = vm
	return vm
}

func (f *fakeFleet) launch(raw []byte) (int, any, error) {
	var q api.LaunchRequest
	if err := api.Decode(raw, &q); err != nil {
		return 0, nil, err
	}
	if err := q.Check(); err != nil {
		return 0, nil, err
	}
	q.Tenant = cmp.Or(q.Tenant, f.tenancy.caller)
	if err := f.mayLaunch(q.Tenant); err != nil {
		return 0, nil, err
	}
	for _, vm := range f.vms {
		if q.Name != "" && vm.Name == q.Name && ownerOf(q.Tenant) == vm.owner() && vm.State != api.StateDeleting {
			return 0, nil, api.Errorf(api.CodeNameTaken, "a VM has the name %q; choose another", q.Name)
		}
	}
	p := f.pools[q.Pool]
	if q.Pool != "" && p == nil {
		return 0, nil, api.Errorf(api.CodeNotFound, "there is no pool %q", q.Pool)
	}
	if !fakeHostMatches(q.Selector(), nil) || q.Node != "" && q.Node != "node-1" {
		e := api.Errorf(api.CodeNoCapacity, "no healthy, uncordoned nodes can take it")
		e.Reasons = map[string]int{api.WhyLabel: 1}
		return 0, nil, e
	}
	answer := api.LaunchAnswer{Node: "node-1", ColdReason: "no_pool"}
	var vm *fakeVM
	if p != nil {
		q.Image, q.VCPUs, q.MemoryMiB, q.DiskSizeGiB = p.Image, p.Size.VCPUs, p.Size.MemoryMiB, p.Size.DiskSizeGiB
		answer.ColdReason = "pool_empty"
		for _, spare := range f.vms {
			if spare.spare && spare.Pool == q.Pool && spare.ready() {
				vm = spare
			}
		}
	}
	if vm != nil {
		ms := int64(7)
		answer.Warm, answer.Pool, answer.ClaimMS, answer.ColdReason = true, q.Pool, &ms, ""
		vm.spare, vm.ClaimedFrom, vm.ClaimedAt = false, q.Pool, api.TimeOf(time.Now())
	} else {
		image := f.images[q.Image]
		if q.VCPUs == 0 {
			q.VCPUs = max(1, image.VCPUs)
		}
		if q.MemoryMiB == 0 {
			q.MemoryMiB = max(512, image.MemoryMiB)
		}
		if q.DiskSizeGiB == 0 {
			q.DiskSizeGiB = image.DiskSizeGiB
		}
		vm = f.boot(q.Image, api.Size{VCPUs: q.VCPUs, MemoryMiB: q.MemoryMiB, DiskSizeGiB: q.DiskSizeGiB})
		vm.Pool, vm.ColdReason = q.Pool, answer.ColdReason
	}
	if q.Name != "" {
		vm.Name = q.Name
	}
	vm.Labels, vm.Tenant = q.Labels, orNil(q.Tenant)
	if q.TTLSeconds > 0 {
		start := vm.CreatedAt
		if !vm.ClaimedAt.IsZero() {
			start = vm.ClaimedAt
		}
		vm.ExpiresAt = start.Add(time.Duration(q.TTLSeconds) * time.Second)
	}
	answer.VM = vm.VM
	return 201, answer, nil
}

func (f *fakeFleet) onVM(method, name string, raw []byte) (int, any, error) {
	var vm *fakeVM
	for _, v := range f.vms {
		if v.ID == name || v.Name == name && v.Tenant == nil {
			vm = v
		}
	}
	if vm == nil {
		return 0, nil, api.Errorf(api.CodeNotFound, "there is no VM %q", name)
	}
	switch method {
	case http.MethodDelete:
		vm.State, vm.goneFor = api.StateDeleting, time.Now().Add(150*time.Millisecond)
		return 204, nil, nil
	case http.MethodPatch:
		var p api.VMPatch
		if err := api.Decode(raw, &p); err != nil {
			return 0, nil, err
		}
		assign(&vm.Name, p.Name)
		labels := maps.Clone(vm.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		for k, v := range p.Labels {
			if delete(labels, k); v != nil {
				labels[k] = *v
			}
		}
		vm.Labels = labels
		if p.TTLSeconds.Set {
			vm.ExpiresAt = 0
			if !p.TTLSeconds.Null {
				vm.ExpiresAt = api.TimeOf(time.Now()).Add(time.Duration(p.TTLSeconds.V) * time.Second)
			}
		}
		vm.Version = f.version()
	}
	return 200, vm.VM, nil
}

// lastChange is the newest request that changed something and whose path begins with prefix.
func (f *fakeFleet) lastChange(prefix string) string {
	for _, r := range slices.Backward(f.changes()) {
		if strings.HasPrefix(r, prefix) {
			return r
		}
	}
	return ""
}

func count(list []string, prefix string) (n int) {
	for _, s := range list {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}
