package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestLedgerColumnsAreTheRowsFields(t *testing.T) {
	var want []string
	for _, of := range []reflect.Type{reflect.TypeFor[LedgerRow](), reflect.TypeFor[Rate]()} {
		var names []string
		for i := range of.NumField() {
			names = append(names, of.Field(i).Tag.Get("json"))
		}
		if at := slices.Index(want, "rate"); at >= 0 {
			want = slices.Replace(want, at, at+1, names...)
		} else {
			want = names
		}
	}
	if got := LedgerColumns(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLedgerRecordHoldsWhatItsColumnsSay(t *testing.T) {
	tenant := "acme"
	row := LedgerRow{ID: "1", Tenant: &tenant, Kind: LedgerVM, VMID: "v", LeaseID: "l", Name: "n", Node: "h", Pool: "p", GuestOS: GuestLinux, VCPUs: 2, MemoryMiB: 3,
		StartedAt: 1000, EndedAt: 2000, EndReason: "deleted", Rate: Rate{VCPUHourMicros: 4, GiBHourMicros: 5, HourMicros: 6}, AmountMicros: -7}
	raw, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	for k, v := range fields["rate"].(map[string]any) {
		fields[k] = v
	}
	for i, column := range LedgerColumns() {
		if got, want := row.Record()[i], fmt.Sprint(fields[column]); got != want {
			t.Errorf("%s: got %q, want %q", column, got, want)
		}
	}
	if got, want := strings.Join((&LedgerRow{}).Record(), ","), ",,,,,,,,,0,0,,,,0,0,0,0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
