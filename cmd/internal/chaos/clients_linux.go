package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	workers     = 8
	pools       = 2
	spares      = 6  // of each pool
	mostKept    = 60 // VMs that clients hold at once
	acme        = "acme"
	acmeVMs     = 4               // its quota
	learnWithin = 3 * time.Minute // what became of a request under a key
	imageName   = "tiny"
)

func poolName(i int) string { return fmt.Sprintf("p%d", i) }

// held is a VM that a client has.
type held struct {
	id, name, node, token string
	since                 time.Time
}

// clients work on the fleet and write down what they see.
type clients struct {
	f     *fleet
	rec   *record
	call  *caller
	index *indexes
	quota *objects // settings of tenants
	limit *objects // settings of pools
	names *objects // of VMs
	acme  string   // key of the tenant

	mu       sync.Mutex
	holders  map[string]string // the launch that has a VM, by the VM's id
	kept     []held
	gone     []held               // acknowledged as deleted
	reboots  map[string]time.Time // of hosts, the latest
	adjusted map[string]int64     // acknowledged amounts by reason
}

func newClients(f *fleet, rec *record) *clients {
	c := &clients{f: f, rec: rec, call: f.call, index: newIndexes(), holders: map[string]string{}, reboots: map[string]time.Time{}, adjusted: map[string]int64{}}
	most := 1
	c.quota = &objects{kind: "quota", rec: rec, model: func() porcupine.Model { return settingModel(0) },
		make: func(ctx context.Context, n int) (string, error) {
			name := fmt.Sprintf("t-%d", n)
			none := int64(0)
			_, err := f.admin.CreateTenant(ctx, api.TenantRequest{Name: name, Quota: api.Quota{MaxVMs: &none}}, "tenant-"+name)
			return name, err
		}}
	c.limit = &objects{kind: "limit of pool", rec: rec, model: func() porcupine.Model { return settingModel(1) },
		make: func(ctx context.Context, n int) (string, error) {
			name, none := fmt.Sprintf("l-%d", n), 0
			_, err := f.admin.CreatePool(ctx, api.PoolRequest{Name: name, Image: imageName, MinReady: &none, MaxTotal: &most}, "pool-"+name)
			return name, err
		},
		gone: func(ctx context.Context, name string) {
			_ = f.admin.DeletePool(context.WithoutCancel(ctx), name) // there is room for 64, and only here are they made
		}}
	c.names = &objects{kind: "name", rec: rec, model: nameModel, make: func(_ context.Context, n int) (string, error) { return fmt.Sprintf("w-%d", n), nil },
		gone: func(ctx context.Context, name string) { _ = f.admin.DeleteVM(context.WithoutCancel(ctx), name) }} // whoever had it last
	return c
}

// prepare makes what clients work with.
func (c *clients) prepare(ctx context.Context) error {
	admin := c.f.admin
	if _, err := admin.CreateImage(ctx, api.ImageRequest{Name: imageName, Path: "sim:?boot_ms=30&agent_ms=20", VCPUs: 1, MemoryMiB: 64, HasAgent: true}, "image"); err != nil {
		return fmt.Errorf("making an image: %w", err)
	}
	price := []api.VMPrice{{GuestOS: api.GuestLinux, VCPUHourMicros: 7_200_001, GiBHourMicros: 3_600_003}}
	if _, err := admin.PutPrices(ctx, api.Prices{Currency: "EUR", VM: price, Lease: []api.LeasePrice{}, Pool: price}); err != nil {
		return fmt.Errorf("setting prices: %w", err)
	}
	for i := range pools {
		wanted, most := spares, 100
		if _, err := admin.CreatePool(ctx, api.PoolRequest{Name: poolName(i), Image: imageName, MinReady: &wanted, MaxTotal: &most}, "pool-"+poolName(i)); err != nil {
			return fmt.Errorf("making a pool: %w", err)
		}
	}
	allowed := int64(acmeVMs)
	for name, quota := range map[string]api.Quota{acme: {MaxVMs: &allowed}, "gap": {}, "till": {}} {
		if _, err := admin.CreateTenant(ctx, api.TenantRequest{Name: name, Quota: quota}, "tenant-"+name); err != nil {
			return fmt.Errorf("making a tenant: %w", err)
		}
	}
	key, err := admin.CreateTenantKey(ctx, acme, api.KeyRequest{Role: api.RoleTenant}, "key-"+acme)
	if err != nil {
		return fmt.Errorf("making a key: %w", err)
	}
	c.acme = key.Secret
	for _, s := range []*objects{c.quota, c.limit, c.names} {
		if err := s.fill(ctx, 4); err != nil {
			return err
		}
	}
	return nil
}

// work does one thing after the other until ctx ends; what has begun is brought to its end.
func (c *clients) work(ctx context.Context, who int, rng *rand.Rand) {
	whole := context.WithoutCancel(ctx)
	for n := 0; ctx.Err() == nil; n++ {
		tag := fmt.Sprintf("c%d-%d", who, n)
		switch d := rng.IntN(100); {
		case d < 14:
			c.setting(whole, c.quota, rng)
		case d < 24:
			c.setting(whole, c.limit, rng)
		case d < 48:
			c.name(whole, tag, rng)
		case d < 68:
			c.launch(whole, tag, rng)
		case d < 74:
			c.asTenant(whole, tag, rng)
		case d < 82:
			c.adjust(whole, tag, rng)
		case d < 85:
			c.revoke(whole, tag, rng)
		case d < 95:
			c.ownView(whole, rng)
		default:
			c.used(whole, rng)
		}
		pause(ctx, time.Duration(rng.IntN(60))*time.Millisecond)
	}
}

// current sends a current read and holds its index to what was promised.
func (c *clients) current(ctx context.Context, to target, token, path string) answer {
	floor := c.index.asked()
	a := c.call.once(ctx, to, request{token: token, method: http.MethodGet, path: path, timeout: 6 * time.Second})
	if a.what == done && a.index > 0 {
		if err := c.index.answered(floor, a.index); err != nil {
			c.rec.broken(checkIndex, "%s at %s: %v", path, to.run, err)
		}
	}
	return a
}

// promise takes the index of a write's answer.
func (c *clients) promise(a answer) {
	if a.what == done {
		_ = c.index.answered(0, a.index)
	}
}

// setting reads or writes a number that several clients compete for.
func (c *clients) setting(ctx context.Context, of *objects, rng *rand.Rand) {
	o := of.take(rng)
	if o == nil {
		return
	}
	defer of.put(ctx, o)
	path := "/fleet/tenants/" + o.name
	if of == c.limit {
		path = "/fleet/pools/" + o.name
	}
	to := c.f.any(rng)
	call := time.Now()
	if rng.IntN(2) == 0 {
		a := c.current(ctx, to, operatorToken, path)
		if a.what != done {
			return
		}
		var got struct {
			Quota    api.Quota `json:"quota"`
			MaxTotal int64     `json:"max_total"`
		}
		if err := a.read(&got); err != nil || of == c.quota && got.Quota.MaxVMs == nil {
			c.rec.broken(checkAnswer, "reading %s: %v: %.200s", path, err, a.body)
			return
		}
		value := got.MaxTotal
		if of == c.quota {
			value = *got.Quota.MaxVMs
		}
		o.note(settingInput{}, settingOutput{value}, call, time.Now(), false)
		c.rec.did("read")
		return
	}
	value := 1 + rng.Int64N(100)
	body := any(map[string]any{"max_total": value})
	if of == c.quota {
		value = rng.Int64N(1 << 30)
		body = map[string]any{"quota": map[string]any{"max_vms": value}}
	}
	a := c.call.once(ctx, to, request{token: operatorToken, method: http.MethodPatch, path: path, body: body, timeout: 6 * time.Second})
	c.promise(a)
	switch a.what {
	case done, unknown:
		o.note(settingInput{write: true, value: value}, settingOutput{}, call, time.Now(), a.what == unknown)
		c.rec.did("write")
	case refused:
		c.rec.broken(checkAnswer, "PATCH %s was refused: %v", path, a.err)
	}
}

// insist repeats a request under its key, at one replica after the other, until it is decided. tries says how often it
// may have begun anew.
func (c *clients) insist(ctx context.Context, q request, rng *rand.Rand) (a answer, tries int) {
	deadline := time.Now().Add(learnWithin)
	for unsure := false; ; {
		a = c.call.once(ctx, c.f.any(rng), q)
		if a.what != notApplied {
			tries++
		}
		if a.what == unknown && !unsure {
			unsure = true
			c.rec.with(func() { c.rec.repeated++ })
		}
		if a.what == done || a.what == refused {
			c.promise(a)
			return a, tries
		}
		if time.Now().After(deadline) {
			if unsure {
				c.rec.with(func() { c.rec.left++ })
				c.rec.broken(checkKey, "what became of %s %s under key %s was not to be learnt in %s: %v", q.method, q.path, q.key, learnWithin, a.err)
			}
			return a, tries
		}
		pause(ctx, time.Duration(50+rng.IntN(300))*time.Millisecond)
	}
}

// storm sends one request under one key from several clients at once.
func (c *clients) storm(ctx context.Context, q request, rng *rand.Rand) (first answer, tries int) {
	if rng.IntN(4) > 0 {
		return c.insist(ctx, q, rng)
	}
	c.rec.did("retry storm")
	const many = 3
	answers, turns := make([]answer, many), make([]int, many)
	var all sync.WaitGroup
	for i := range many {
		own := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		all.Go(func() { answers[i], turns[i] = c.insist(ctx, q, own) })
	}
	all.Wait()
	first = answers[0]
	for i, a := range answers {
		tries += turns[i]
		if a.what == done {
			first = a
		}
	}
	for _, a := range answers {
		if a.what == done && essence(a) != essence(first) {
			c.rec.broken(checkKey, "%s %s under key %s gave %s and %s", q.method, q.path, q.key, essence(a), essence(first))
		}
	}
	return first, tries
}

// essence is what equal requests must get equal.
func essence(a answer) string {
	var got struct {
		ID string `json:"id"`
		VM struct {
			ID string `json:"id"`
		} `json:"vm"`
	}
	if err := a.read(&got); err != nil {
		return err.Error()
	}
	return got.ID + got.VM.ID
}

func (c *clients) launchRequest(token, name, tag string, rng *rand.Rand) request {
	body := map[string]any{"name": name}
	if rng.IntN(3) > 0 && token == operatorToken {
		body["pool"] = poolName(rng.IntN(pools))
	} else {
		body["image"] = imageName
	}
	return request{token: token, method: http.MethodPost, path: "/fleet/vms", key: "launch-" + tag, body: body, timeout: 20 * time.Second}
}

// given checks whom a launch's VM belongs to.
func (c *clients) given(a answer, q request, name string) (api.LaunchAnswer, bool) {
	var got api.LaunchAnswer
	if err := a.read(&got); err != nil || got.VM.ID == "" {
		c.rec.broken(checkAnswer, "launching %s: %v: %.200s", name, err, a.body)
		return got, false
	}
	if got.VM.Name != name && got.VM.State != api.StateGone {
		c.rec.broken(checkClaim, "launching %s gave a VM that is called %s", name, got.VM.Name)
	}
	launch := q.key
	c.mu.Lock()
	other := c.holders[got.VM.ID]
	c.holders[got.VM.ID] = launch
	c.mu.Unlock()
	if other != "" && other != launch {
		c.rec.broken(checkClaim, "VM %s was given to %s and to %s", got.VM.ID, other, launch)
	}
	c.rec.did(map[bool]string{true: "warm launch", false: "cold launch"}[got.Warm])
	return got, true
}

// name competes for a VM's name: launch, look, delete.
func (c *clients) name(ctx context.Context, tag string, rng *rand.Rand) {
	o := c.names.take(rng)
	if o == nil {
		return
	}
	defer c.names.put(ctx, o)
	call := time.Now()
	if rng.IntN(3) > 0 {
		a := c.current(ctx, c.f.any(rng), operatorToken, "/fleet/vms/"+o.name)
		var vm api.VM
		switch {
		case a.what == done && a.read(&vm) == nil:
			o.note(nameInput{op: nameSeen, id: vm.ID}, nil, call, time.Now(), false)
			if rng.IntN(2) == 0 {
				c.freeName(ctx, o, held{id: vm.ID, name: o.name, token: operatorToken}, rng)
			}
		case a.code == api.CodeNotFound:
			o.note(nameInput{op: nameSeen}, nil, call, time.Now(), false)
		default:
			return
		}
		c.rec.did("read")
		return
	}
	q := c.launchRequest(operatorToken, o.name, tag, rng)
	a, tries := c.insist(ctx, q, rng)
	back := time.Now()
	mixed := tries > 1
	switch {
	case a.what == done:
		got, ok := c.given(a, q, o.name)
		mixed = mixed || got.ColdReason == "rename_failed"
		if ok {
			o.note(nameInput{op: nameTaken, id: got.VM.ID}, nil, call, back, false)
		}
	case a.code == api.CodeNameTaken:
		o.note(nameInput{op: nameInUse}, nil, call, back, false)
	default: // no room, or no host took it: it may have held the name for a moment
		mixed = true
	}
	if mixed {
		o.note(nameInput{op: nameMaybe}, nil, call, back, a.what == unknown)
		o.note(nameInput{op: nameUnsure}, nil, call, back, a.what == unknown)
	}
}

func (c *clients) freeName(ctx context.Context, o *object, v held, rng *rand.Rand) {
	call := time.Now()
	if c.remove(ctx, v, rng) {
		o.note(nameInput{op: nameFreed, id: v.id}, nil, call, time.Now(), false)
	} else {
		o.note(nameInput{op: nameFreed, id: v.id}, nil, call, time.Now(), true)
	}
}

// remove deletes a VM. A DELETE names what it ends, so it may be sent again.
func (c *clients) remove(ctx context.Context, v held, rng *rand.Rand) bool {
	deadline := time.Now().Add(learnWithin)
	for time.Now().Before(deadline) {
		a := c.call.once(ctx, c.f.any(rng), request{token: v.token, method: http.MethodDelete, path: "/fleet/vms/" + v.id, timeout: 8 * time.Second})
		if a.what == done || a.code == api.CodeNotFound {
			c.mu.Lock()
			c.gone = append(c.gone, v)
			c.mu.Unlock()
			c.rec.did("delete")
			return true
		}
		if a.what == refused {
			c.rec.broken(checkAnswer, "deleting VM %s was refused: %v", v.id, a.err)
			return false
		}
		pause(ctx, time.Duration(50+rng.IntN(300))*time.Millisecond)
	}
	c.rec.with(func() { c.rec.left++ })
	c.rec.broken(checkKey, "VM %s could not be deleted within %s", v.id, learnWithin)
	return false
}

// launch takes a VM under a name of its own, keeps it for a while, and gives back an older one.
func (c *clients) launch(ctx context.Context, tag string, rng *rand.Rand) {
	q := c.launchRequest(operatorToken, tag, tag, rng)
	a, _ := c.storm(ctx, q, rng)
	if a.what == done {
		if got, ok := c.given(a, q, tag); ok {
			c.keep(held{id: got.VM.ID, name: tag, node: got.Node, token: operatorToken, since: time.Now()})
		}
	} else if a.what == refused && a.code != api.CodeNoCapacity {
		c.rec.broken(checkAnswer, "launching %s was refused: %v", tag, a.err)
	}
	if old, ok := c.drop(rng, operatorToken); ok {
		c.remove(ctx, old, rng)
	}
}

func (c *clients) keep(v held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, v)
}

// drop picks a VM of the token's to delete: more often the more there are.
func (c *clients) drop(rng *rand.Rand, token string) (held, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var own []int
	for i, v := range c.kept {
		if v.token == token {
			own = append(own, i)
		}
	}
	if len(own) == 0 || rng.IntN(mostKept) > 2*len(own) {
		return held{}, false
	}
	at := own[rng.IntN(len(own))]
	v := c.kept[at]
	c.kept = slices.Delete(c.kept, at, at+1)
	return v, true
}

// asTenant launches as a tenant that may have few VMs, and deletes when it has too many.
func (c *clients) asTenant(ctx context.Context, tag string, rng *rand.Rand) {
	q := c.launchRequest(c.acme, tag, tag, rng)
	a, _ := c.storm(ctx, q, rng)
	switch {
	case a.what == done:
		if got, ok := c.given(a, q, tag); ok {
			c.keep(held{id: got.VM.ID, name: tag, node: got.Node, token: c.acme, since: time.Now()})
		}
	case a.code == api.CodeQuotaExceeded:
		c.rec.did("refused by quota")
		c.mu.Lock()
		at := slices.IndexFunc(c.kept, func(v held) bool { return v.token == c.acme })
		var v held
		if at >= 0 {
			v = c.kept[at]
			c.kept = slices.Delete(c.kept, at, at+1)
		}
		c.mu.Unlock()
		if at >= 0 {
			c.remove(ctx, v, rng)
		}
	case a.what == refused && a.code != api.CodeNoCapacity:
		c.rec.broken(checkAnswer, "launching %s as %s was refused: %v", tag, acme, a.err)
	}
}

// used holds the tenant's use to its quota.
func (c *clients) used(ctx context.Context, rng *rand.Rand) {
	a := c.current(ctx, c.f.any(rng), c.acme, "/fleet/tenants/"+acme+"/usage")
	var got api.TenantUsage
	if a.what != done || a.read(&got) != nil {
		return
	}
	if got.Used.VMs > acmeVMs {
		c.rec.broken(checkQuota, "%s has %d VMs at index %d, and may have %d", acme, got.Used.VMs, a.index, acmeVMs)
	}
	c.rec.did("read")
}

// adjust gives money, once.
func (c *clients) adjust(ctx context.Context, tag string, rng *rand.Rand) {
	amount := 1 + rng.Int64N(1_000_000)
	q := request{token: operatorToken, method: http.MethodPost, path: "/fleet/ledger", key: "adjust-" + tag, timeout: 6 * time.Second,
		body: api.AdjustmentRequest{Tenant: "till", AmountMicros: amount, Reason: tag}}
	a, _ := c.storm(ctx, q, rng)
	switch a.what {
	case done:
		c.mu.Lock()
		c.adjusted[tag] = amount
		c.mu.Unlock()
		c.rec.did("adjustment")
	case refused:
		c.rec.broken(checkAnswer, "adjusting was refused: %v", a.err)
	}
}

// revoke makes a key, takes it back, and sees that nobody takes it any more.
func (c *clients) revoke(ctx context.Context, tag string, rng *rand.Rand) {
	a, _ := c.insist(ctx, request{token: operatorToken, method: http.MethodPost, path: "/fleet/tenants/" + acme + "/keys", key: "key-" + tag, body: api.KeyRequest{Role: api.RoleViewer}, timeout: 6 * time.Second}, rng)
	var key api.Key
	if a.what != done || a.read(&key) != nil {
		return // its secret was in an answer that was lost
	}
	q := request{token: operatorToken, method: http.MethodDelete, path: "/fleet/tenants/" + acme + "/keys/" + key.ID, timeout: 6 * time.Second}
	for deadline := time.Now().Add(learnWithin); ; pause(ctx, 100*time.Millisecond) {
		a = c.call.once(ctx, c.f.any(rng), q)
		if a.what == done || a.code == api.CodeNotFound {
			break
		}
		if time.Now().After(deadline) {
			return
		}
	}
	to := c.f.any(rng)
	if after := c.current(ctx, to, key.Secret, "/fleet/tenants/"+acme); after.what == done {
		c.rec.broken(checkRevoked, "%s took key %s after it was revoked", to.run, key.ID)
	}
	c.rec.did("revocation")
}

// ownView reads what a replica has applied itself.
func (c *clients) ownView(ctx context.Context, rng *rand.Rand) {
	to := c.f.any(rng)
	floor := c.index.askedOf(to.run)
	a := c.call.once(ctx, to, request{token: operatorToken, method: http.MethodGet, path: "/fleet/policy?stale=true", timeout: 3 * time.Second})
	if a.what != done {
		return
	}
	if again := c.f.placeOf(to.name); again == nil || again.target().run != to.run {
		return // another start answered
	}
	if err := c.index.answeredBy(to.run, floor, a.index); err != nil {
		c.rec.broken(checkIndex, "%v", err)
	}
	if a.header.Get(api.HeaderLastContact) == "" {
		c.rec.broken(checkAnswer, "%s does not say how old its own view is", to.run)
	}
	c.rec.did("stale read")
}

// rebooted notes that a host loses its VMs: names may be free from now on, and VMs gone.
func (c *clients) rebooted(node string) {
	now := time.Now()
	c.mu.Lock()
	c.reboots[node] = now
	c.mu.Unlock()
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	for _, o := range c.names.now {
		o.note(nameInput{op: nameMayEnd}, nil, now, now, true)
	}
}
