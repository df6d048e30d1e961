package api

import (
	"errors"
	"strings"
	"testing"
)

func TestPricesAreGivenWhole(t *testing.T) {
	const whole = `{"currency":"EUR","vm":[{"guest_os":"linux","vcpu_hour_micros":1,"gib_hour_micros":0,"on_leased":false}],` +
		`"lease":[{"label":"","hour_micros":5}],"pool":[{"guest_os":"macos","vcpu_hour_micros":2,"gib_hour_micros":3,"on_leased":true}]}`
	p, err := DecodePrices([]byte(whole))
	if err != nil || p.VM[0].VCPUHourMicros != 1 || p.Lease[0].HourMicros != 5 || !p.Pool[0].OnLeased {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err := DecodePrices([]byte(`{"currency":"EUR","vm":[],"lease":[],"pool":[],"version":7}`)); err != nil || len(p.VM) != 0 {
		t.Errorf("got %+v, %v for no prices", p, err)
	}
	for field, change := range map[string][2]string{
		"currency":                 {`"currency":"EUR",`, ``},
		"vm":                       {`"vm":[{"guest_os":"linux","vcpu_hour_micros":1,"gib_hour_micros":0,"on_leased":false}],`, ``},
		"lease":                    {`[{"label":"","hour_micros":5}]`, `null`},
		"pool":                     {`,"pool":[{"guest_os":"macos","vcpu_hour_micros":2,"gib_hour_micros":3,"on_leased":true}]`, ``},
		"vm[0].guest_os":           {`"guest_os":"linux",`, ``},
		"vm[0].gib_hour_micros":    {`"gib_hour_micros":0,`, ``},
		"vm[0].on_leased":          {`"on_leased":false`, `"on_leased":null`},
		"pool[0].on_leased":        {`,"on_leased":true`, ``},
		"pool[0].vcpu_hour_micros": {`"vcpu_hour_micros":2,`, ``},
		"lease[0].label":           {`"label":"",`, ``},
		"lease[0].hour_micros":     {`,"hour_micros":5`, ``},
		"guest_os":                 {`"linux"`, `""`},
	} {
		raw := strings.Replace(whole, change[0], change[1], 1)
		var e *Error
		if _, err := DecodePrices([]byte(raw)); raw == whole || !errors.As(err, &e) || e.Code != CodeInvalid || e.Field != field {
			t.Errorf("%s: got %v for %s", field, err, raw)
		}
	}
}
