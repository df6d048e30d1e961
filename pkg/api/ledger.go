package api

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
			if err := first(checkGuestOS("guest_os", v.GuestOS), checkNumbers(numberRule{"vcpu_hour_micros", v.VCPUHourMicros, 1 << 42}, numberRule{"gib_hour_micros", v.GiBHourMicros, 1 << 42})); err != nil {
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

// Check refuses an adjustment without a reason.
func (r *AdjustmentRequest) Check() error {
	if r.AmountMicros == 0 || r.AmountMicros > 1<<60 || r.AmountMicros < -(1<<60) {
		return Invalid("amount_micros", "amount_micros must be a whole number other than 0")
	}
	return first(CheckName("tenant", r.Tenant, MaxPoolName), checkText("reason", r.Reason, maxReasonLength, true))
}
