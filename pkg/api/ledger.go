package api

import (
	"encoding/json"
	"errors"
	"strconv"
)

// Kinds of ledger rows.
const (
	LedgerVM         = "vm"
	LedgerLease      = "lease"
	LedgerPool       = "pool" // an idle spare of a shared pool: the operator's cost
	LedgerAdjustment = "adjustment"
)

// Prices are what later stretches are charged. Money is in micro-units of Currency.
type Prices struct {
	Currency string       `json:"currency"`
	VM       []VMPrice    `json:"vm"`
	Lease    []LeasePrice `json:"lease"`
	Pool     []VMPrice    `json:"pool"`
	Version  uint64       `json:"version,omitempty"`
}

// VMPrice charges VMs of a guest OS by their size. OnLeased charges them on their tenant's leased hosts, too.
type VMPrice struct {
	GuestOS        string `json:"guest_os"`
	VCPUHourMicros int64  `json:"vcpu_hour_micros"`
	GiBHourMicros  int64  `json:"gib_hour_micros"`
	OnLeased       bool   `json:"on_leased"`
}

// LeasePrice charges a leased host that has the label KEY=VALUE; an empty label is any host. The first that fits counts.
type LeasePrice struct {
	Label      string `json:"label"`
	HourMicros int64  `json:"hour_micros"`
}

// Rate is what a stretch was charged when it was opened.
type Rate struct {
	VCPUHourMicros int64 `json:"vcpu_hour_micros"`
	GiBHourMicros  int64 `json:"gib_hour_micros"`
	HourMicros     int64 `json:"hour_micros"`
}

// LedgerRow is one billed stretch, half-open from StartedAt to EndedAt. Amount is set when it closes, rounded down.
type LedgerRow struct {
	ID           string  `json:"id"`
	Tenant       *string `json:"tenant"` // null: the operator's
	Kind         string  `json:"kind"`
	VMID         string  `json:"vm_id"`
	LeaseID      string  `json:"lease_id"`
	Name         string  `json:"name"`
	Node         string  `json:"node"`
	Pool         string  `json:"pool"`
	GuestOS      string  `json:"guest_os"`
	VCPUs        int     `json:"vcpus"`
	MemoryMiB    int64   `json:"memory_mib"`
	StartedAt    Time    `json:"started_at"`
	EndedAt      Time    `json:"ended_at"`
	EndReason    string  `json:"end_reason"`
	Rate         Rate    `json:"rate"`
	AmountMicros int64   `json:"amount_micros"`
}

// AdjustmentRequest is the body of POST /fleet/ledger: money given or taken, with the reason.
type AdjustmentRequest struct {
	Tenant       string `json:"tenant"`
	AmountMicros int64  `json:"amount_micros"`
	Reason       string `json:"reason"`
}

// UsageItem sums up stretches. Day is YYYY-MM-DD in UTC; what is not grouped by is empty.
type UsageItem struct {
	Tenant       *string `json:"tenant"`
	Pool         string  `json:"pool"`
	Day          string  `json:"day"`
	VMSeconds    int64   `json:"vm_seconds"`
	VCPUSeconds  int64   `json:"vcpu_seconds"`
	GiBSeconds   int64   `json:"gib_seconds"`
	LeaseSeconds int64   `json:"lease_seconds"`
	AmountMicros int64   `json:"amount_micros"`
}

// Usage is GET /fleet/usage.
type Usage struct {
	Items []UsageItem `json:"items"`
	Total UsageItem   `json:"total"`
}

// DecodePrices reads the body of PUT /fleet/prices. It replaces all prices, so nothing may be left out: a forgotten list or
// amount would make things free.
func DecodePrices(raw []byte) (p Prices, err error) {
	if err := Decode(raw, &p); err != nil {
		return p, err
	}
	var given map[string]json.RawMessage
	var lists struct{ VM, Lease, Pool []map[string]json.RawMessage }
	if err := errors.Join(json.Unmarshal(raw, &given), json.Unmarshal(raw, &lists)); err != nil {
		return p, decodeError(err, 0)
	}
	err = checkGiven("", given, "currency", "vm", "lease", "pool")
	for _, l := range []struct {
		name   string
		items  []map[string]json.RawMessage
		fields []string
	}{
		{"vm", lists.VM, vmPriceFields()},
		{"pool", lists.Pool, vmPriceFields()},
		{"lease", lists.Lease, []string{"label", "hour_micros"}},
	} {
		for i, item := range l.items {
			err = first(err, checkGiven(l.name+"["+strconv.Itoa(i)+"].", item, l.fields...))
		}
	}
	return p, first(err, p.Check())
}

func vmPriceFields() []string {
	return []string{"guest_os", "vcpu_hour_micros", "gib_hour_micros", "on_leased"}
}

// checkGiven names the first field of an object that is absent or null.
func checkGiven(prefix string, object map[string]json.RawMessage, fields ...string) error {
	for _, name := range fields {
		if raw, ok := object[name]; !ok || string(raw) == "null" {
			return Invalid(prefix+name, "%s%s is required", prefix, name)
		}
	}
	return nil
}

// Check refuses prices nobody could charge.
func (p *Prices) Check() error {
	if len(p.Currency) != 3 {
		return Invalid("currency", "currency must be three letters, such as EUR")
	}
	if len(p.VM)+len(p.Lease)+len(p.Pool) > 100 {
		return Invalid("vm", "there may be 100 prices at most")
	}
	for _, list := range [][]VMPrice{p.VM, p.Pool} {
		for _, v := range list {
			if err := first(checkText("guest_os", v.GuestOS, len(GuestMacOS), true), checkGuestOS("guest_os", v.GuestOS), checkNumbers(numberRule{"vcpu_hour_micros", v.VCPUHourMicros, 1 << 42}, numberRule{"gib_hour_micros", v.GiBHourMicros, 1 << 42})); err != nil {
				return err
			}
		}
	}
	for _, l := range p.Lease {
		if err := first(checkText("label", l.Label, 320, false), checkNumbers(numberRule{"hour_micros", l.HourMicros, 1 << 42})); err != nil {
			return err
		}
	}
	return nil
}

// maxAdjustment bounds one adjustment, in micros.
const maxAdjustment = 1 << 60

// Check refuses an adjustment without a reason.
func (r *AdjustmentRequest) Check() error {
	if r.AmountMicros == 0 || r.AmountMicros > maxAdjustment || r.AmountMicros < -maxAdjustment {
		return Invalid("amount_micros", "amount_micros must be a whole number other than 0, from %d to %d", int64(-maxAdjustment), int64(maxAdjustment))
	}
	return first(CheckName("tenant", r.Tenant, MaxPoolName), checkText("reason", r.Reason, maxReasonLength, true))
}
