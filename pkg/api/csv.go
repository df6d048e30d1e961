package api

import "strconv"

// LedgerColumns is the head of the ledger as CSV: the fields of a LedgerRow in their order, with those of its rate in
// place of rate.
func LedgerColumns() []string {
	return []string{"id", "tenant", "kind", "vm_id", "lease_id", "name", "node", "pool", "guest_os", "vcpus", "memory_mib",
		"started_at", "ended_at", "end_reason", "vcpu_hour_micros", "gib_hour_micros", "hour_micros", "amount_micros"}
}

// Record is the row as a line of CSV under LedgerColumns. What is null in JSON is empty.
func (r *LedgerRow) Record() []string {
	tenant := ""
	if r.Tenant != nil {
		tenant = *r.Tenant
	}
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{r.ID, tenant, r.Kind, r.VMID, r.LeaseID, r.Name, r.Node, r.Pool, r.GuestOS, strconv.Itoa(r.VCPUs), whole(r.MemoryMiB),
		r.StartedAt.String(), r.EndedAt.String(), r.EndReason, whole(r.Rate.VCPUHourMicros), whole(r.Rate.GiBHourMicros), whole(r.Rate.HourMicros), whole(r.AmountMicros)}
}
