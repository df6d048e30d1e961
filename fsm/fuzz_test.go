package fsm

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzApply gives a fleet any bytes for a command: it answers or says that it is too old for them, and never panics.
// What it could not read changes nothing.
func FuzzApply(f *testing.F) {
	var samples [][]byte
	for _, c := range script() {
		samples = append(samples, c.read(f).Bytes)
		f.Add(samples[len(samples)-1])
	}
	f.Add([]byte{})
	f.Add([]byte{format})
	f.Add([]byte{2, '{', '}'})
	f.Add([]byte("\x01{\"v\":1,\"kind\":99,\"now\":null,\"body\":{}}"))
	f.Add([]byte("\x01{\"v\":2,\"kind\":2,\"now\":null,\"body\":{}}"))
	f.Add([]byte("\x01{\"v\":1,\"kind\":16,\"now\":null,\"body\":null}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := New()
		for i, c := range samples[:12] { // as far as a claimed spare, a failed one and a placed one
			if _, err := s.Apply(uint64(i+1), c); err != nil {
				t.Fatal(err)
			}
		}
		before := s.View()
		r, err := s.Apply(13, raw)
		switch {
		case err != nil && !errors.Is(err, ErrUpgrade):
			t.Fatalf("got %v, want ErrUpgrade or a result", err)
		case err != nil && difference(t, before, s.View()) != "":
			t.Fatalf("a command that cannot be read changed %s", difference(t, before, s.View()))
		case err == nil && r.Index != 13:
			t.Fatalf("got %+v", r)
		case r.Err != nil && difference(t, before, s.View()) != "":
			t.Fatalf("a refusal changed %s", difference(t, before, s.View()))
		case s.View().Meta().Now < before.Meta().Now:
			t.Fatal("the time went back")
		}
		for i := range 3 { // it goes on
			if _, err := s.Apply(uint64(14+i), samples[1]); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzRestore gives any bytes for a snapshot: all but a whole one are refused and leave the state as it was.
func FuzzRestore(f *testing.F) {
	whole := wholeSnapshot(f)
	f.Add(whole, 0, byte(0))
	for _, at := range []int{0, 1, 100, len(whole) / 2, len(whole) - 2, len(whole) - 1} {
		f.Add(whole, at, byte(1))
		f.Add(whole[:at], 0, byte(0))
	}
	f.Add([]byte("{\"format\":\"fluxvm-snapshot-1\"}\n\n"), 0, byte(0))
	f.Fuzz(func(t *testing.T, raw []byte, at int, flip byte) {
		raw = bytes.Clone(raw)
		if at >= 0 && at < len(raw) {
			raw[at] ^= flip
		}
		s := New()
		if _, err := s.Apply(1, script()[0].read(t).Bytes); err != nil {
			t.Fatal(err)
		}
		before := s.View()
		if err := s.Restore(bytes.NewReader(raw)); err != nil {
			if difference(t, before, s.View()) != "" || s.View().Index() != 1 {
				t.Fatalf("a refused snapshot changed the state: %v", err)
			}
			select {
			case <-before.Abandoned():
				t.Fatalf("a refused snapshot told readers to go: %v", err)
			default:
			}
			return
		}
		if len(raw) == len(whole) && !bytes.Equal(raw, whole) {
			t.Fatal("a damaged snapshot was taken for a whole one")
		}
		<-before.Abandoned()
		snapshot(t, s.View()) // what was taken can be written
	})
}

// wholeSnapshot is that of the state after all samples.
func wholeSnapshot(t testing.TB) []byte {
	t.Helper()
	s := New()
	for i, c := range script() {
		if _, err := s.Apply(uint64(i+1), c.read(t).Bytes); err != nil {
			t.Fatal(err)
		}
	}
	return snapshot(t, s.View())
}
