package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const (
	microsPerUnit = 1_000_000
	microDigits   = 6
)

// money shows micro-units of a currency in its units: 12.50, 0.0125, -3.00. Nothing is rounded.
func money(micros int64) string {
	sign, whole := "", uint64(micros)
	if micros < 0 {
		sign, whole = "-", -uint64(micros) // of the least number, too
	}
	parts := fmt.Sprintf("%0*d", microDigits, whole%microsPerUnit)
	for len(parts) > 2 && strings.HasSuffix(parts, "0") {
		parts = parts[:len(parts)-1]
	}
	return sign + strconv.FormatUint(whole/microsPerUnit, 10) + "." + parts
}

// moneyValue is a flag that holds an amount in units of the currency, with six decimals at most.
type moneyValue int64

func (v *moneyValue) Set(s string) error {
	bad := usagef("%q is no amount; write it like 12.50 or -0.000125, with six decimals at most", s)
	digits, negative := strings.CutPrefix(s, "-")
	whole, part, _ := strings.Cut(digits, ".")
	if whole == "" || len(part) > microDigits || strings.Trim(whole+part, "0123456789") != "" {
		return bad
	}
	n, err := strconv.ParseInt(whole+part+strings.Repeat("0", microDigits-len(part)), 10, 64)
	if err != nil {
		return bad
	}
	if negative {
		n = -n
	}
	*v = moneyValue(n)
	return nil
}
func (v *moneyValue) String() string {
	if *v == 0 {
		return ""
	}
	return money(int64(*v))
}
func (v *moneyValue) Type() string { return "AMOUNT" }

// currency is what amounts are in, or empty where the token may not see the prices: amounts are right without it.
func (a *app) currency(ctx context.Context, c *client.Client) string {
	p, err := c.Prices(ctx)
	if err != nil {
		return ""
	}
	return p.Currency
}

// inCurrency is a column's head with the currency of what stands below.
func inCurrency(head, currency string) string {
	if currency == "" {
		return head
	}
	return head + "-" + currency
}

// hours shows seconds as hours with two decimals, as usage is read.
func hours(seconds int64) string { return strconv.FormatFloat(float64(seconds)/3600, 'f', 2, 64) }

// instantValue is a flag that holds an instant, in UTC unless it says otherwise.
type instantValue api.Time

func (v *instantValue) Set(s string) error {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			*v = instantValue(api.TimeOf(t))
			return nil
		}
	}
	return usagef("%q is no time; write it like 2026-03-01, '2026-03-01 12:00' (UTC) or 2026-03-01T12:00:00+01:00", s)
}
func (v *instantValue) String() string { return api.Time(*v).String() }
func (v *instantValue) Type() string   { return "TIME" }
