package guest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func frameOf(t testing.TB, payload string) []byte {
	t.Helper()
	frame, err := appendFrame(nil, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// payloads are all whole frames of the stream.
func payloads(t testing.TB, stream io.Reader) []string {
	t.Helper()
	frames := newFrameReader(stream)
	var got []string
	for {
		raw, err := frames.next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(raw))
	}
}

func TestFramesSurviveAnyDamageAroundThem(t *testing.T) {
	whole := string(frameOf(t, `{"id":1}`))
	wrongSum := strings.Replace(whole, `"id":1`, `"id":7`, 1)
	tests := map[string]struct {
		stream string
		want   []string
	}{
		"nothing":                      {"", nil},
		"one":                          {whole, []string{`{"id":1}`}},
		"two":                          {whole + whole, []string{`{"id":1}`, `{"id":1}`}},
		"empty payload":                {string(frameOf(t, "")) + whole, []string{"", `{"id":1}`}},
		"noise before":                 {"login: \x00\xff" + whole, []string{`{"id":1}`}},
		"noise between":                {whole + "noise" + whole, []string{`{"id":1}`, `{"id":1}`}},
		"wrong checksum":               {wrongSum + whole, []string{`{"id":1}`}},
		"no hex length":                {"\x1ezzzzzzzz00000000{}\n" + whole, []string{`{"id":1}`}},
		"length beyond the bound":      {"\x1effffffff00000000" + whole, []string{`{"id":1}`}},
		"long claim, then a new start": {"\x1e00300000deadbeef{\"id" + whole, []string{`{"id":1}`}},
		"start upon start":             {"\x1e\x1e\x1e" + whole, []string{`{"id":1}`}},
		"no line end":                  {whole[:len(whole)-1] + "x" + whole, []string{`{"id":1}`}},
		"start in place of line end":   {whole[:len(whole)-1] + whole, []string{`{"id":1}`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, payloads(t, strings.NewReader(tt.stream))); diff != "" {
				t.Errorf("at once (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, payloads(t, iotest.OneByteReader(strings.NewReader(tt.stream)))); diff != "" {
				t.Errorf("byte by byte (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryHalfFrameIsPassedOver(t *testing.T) {
	cut, whole := frameOf(t, `{"id":1,"op":"exec"}`), frameOf(t, `{"id":2}`)
	for n := range cut {
		stream := append(append([]byte{}, cut[:n]...), whole...)
		if diff := cmp.Diff([]string{`{"id":2}`}, payloads(t, bytes.NewReader(stream))); diff != "" {
			t.Fatalf("cut after %d bytes (-want +got):\n%s", n, diff)
		}
	}
}

func TestFramesTooLongAreNotSent(t *testing.T) {
	if _, err := appendFrame(nil, make([]byte, maxFrame+1)); err == nil {
		t.Error("a frame beyond the bound was made")
	}
	if _, err := appendFrame(nil, []byte{frameStart}); err == nil {
		t.Error("a payload that is no JSON was framed")
	}
}

// FuzzFrames holds the decoder to three things: it ends, gives only what carries a right checksum, and finds the
// frame that follows, whatever rubbish is before it.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x1e00000002"), []byte("{}"))
	f.Add([]byte("\x1e0000000500000000{}\n"), []byte(`{"id":1}`))
	f.Add([]byte("\x1e00400000deadbeef"), []byte(""))
	f.Fuzz(func(t *testing.T, rubbish, payload []byte) {
		payload = bytes.ReplaceAll(payload, []byte{frameStart}, nil)
		if len(payload) > 1<<16 {
			return
		}
		stream := append(append([]byte{}, rubbish...), frameOf(t, string(payload))...)
		got := payloads(t, bytes.NewReader(stream))
		if len(got) == 0 || got[len(got)-1] != string(payload) {
			t.Fatalf("got %q, want %q at the end", got, payload)
		}
		for _, p := range got {
			if !bytes.Contains(stream, frameOf(t, p)) && !bytes.Contains(bytes.ToLower(stream), frameOf(t, p)) {
				t.Fatalf("%q is in no frame of the stream", p)
			}
		}
	})
}
