package api

import (
	"encoding/json"
	"fmt"
	"time"
)

// Time is an instant in whole milliseconds since 1970 UTC. The zero value means "not yet" and is null in JSON;
// any other value is written as RFC 3339 with milliseconds.
type Time int64

const timeLayout = "2006-01-02T15:04:05.000Z"

// TimeOf gives the instant of t, cut to whole milliseconds.
func TimeOf(t time.Time) Time { return Time(t.UnixMilli()) }

// Std gives the instant as a standard time in UTC.
func (t Time) Std() time.Time { return time.UnixMilli(int64(t)).UTC() }

// IsZero says that there is no such instant yet.
func (t Time) IsZero() bool { return t == 0 }

// Add gives the instant d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d.Milliseconds()) }

// Sub gives how much later t is than u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t-u) * time.Millisecond }

// String is the RFC 3339 form, empty for the zero value.
func (t Time) String() string {
	if t == 0 {
		return ""
	}
	return t.Std().Format(timeLayout)
}

// MarshalJSON writes null or a quoted RFC 3339 instant.
func (t Time) MarshalJSON() ([]byte, error) {
	if t == 0 {
		return []byte("null"), nil
	}
	return []byte(`"` + t.String() + `"`), nil
}

// UnmarshalJSON reads null or a quoted RFC 3339 instant.
func (t *Time) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		*t = 0
		return nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return fmt.Errorf("a time is text such as %q", timeLayout)
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return fmt.Errorf("a time is text such as %q", timeLayout)
	}
	*t = TimeOf(at)
	return nil
}
