package api

import (
	"errors"
	"testing"
)

func TestNamesAreExactAndComeOnce(t *testing.T) {
	for body, field := range map[string]string{
		`{"image":"a","image":"b"}`:                               "image",
		`{"image":"a","labels":{"k":"1","k":"2"}}`:                "k",
		`{"image":"a","Image":"b"}`:                               "Image",
		`{"IMAGE":"a"}`:                                           "IMAGE",
		`{"image":"a","apple":{"Guest_OS":"macos"}}`:              "Guest_OS",
		`{"image":"a","networks":[{"name":"x"},{"Name":"y"}]}`:    "Name",
		`{"image":"a","cloud_init":{"runcmd":["a"],"runcmd":[]}}`: "runcmd",
	} {
		var e *Error
		if err := Decode([]byte(body), &LaunchRequest{}); !errors.As(err, &e) || e.Code != CodeInvalid || e.Field != field {
			t.Errorf("%s: got %v (field %q), want it refused for %s", body, err, e.Field, field)
		}
	}
	for _, body := range []string{
		`{"image":"a","labels":{"k":"1","K":"2"},"networks":[{"name":"x"},{"name":"x"}],"nodeSelector":{"name":"image"}}`,
		`{"image":"a","node_selector":{"image":"image"},"cloud_init":{"write_files":[{"path":"a"},{"path":"b"}]}}`,
	} {
		if err := Decode([]byte(body), &LaunchRequest{}); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	if err := Decode([]byte(`{"name":"m","Labels":{}}`), &MachineRequest{}); err == nil {
		t.Error("a capital was taken")
	}
	if err := Decode([]byte(`{"id":"x","profile":"tiny","memory_mib":5}`), &SandboxRequest{}); err != nil {
		t.Errorf("fields of an embedded struct: %v", err)
	}
	if err := Decode([]byte(`{"min_ready":null,"nodes":["a"]}`), &PoolPatch{}); err != nil {
		t.Errorf("a merge patch: %v", err)
	}
}

func TestBearerTokenInAnyCase(t *testing.T) {
	for header, want := range map[string]string{"Bearer abc": "abc", "bearer abc": "abc", "BEARER a b": "a b", "Basic abc": "", "Bearer": "", "": ""} {
		got, ok := BearerToken(header)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: got %q, %t", header, got, ok)
		}
	}
}
