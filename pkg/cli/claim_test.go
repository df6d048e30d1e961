package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestClaimFlagsReadFilesAndNeverTakeASecretFromTheCommandLine(t *testing.T) {
	dir := t.TempDir()
	at := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token, job, binary := at("token", "s3cret\n"), at("job.json", "{}\n"), at("binary", "\xff\xfe")
	f := claimFlags{hostname: "ci", env: []string{"STAGE=a=b"}, files: []string{job + ":/etc/job.json", job + ":/etc/job:0600"}, secrets: []string{"TOKEN=@" + token}}
	got, err := f.claim()
	if err != nil {
		t.Fatal(err)
	}
	want := &api.Claim{Hostname: "ci", Env: map[string]string{"STAGE": "a=b"}, Secrets: map[string]string{"TOKEN": "s3cret"},
		Files: []api.ClaimFile{{Path: "/etc/job.json", Content: "{}\n"}, {Path: "/etc/job", Content: "{}\n", Mode: "0600"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if none, err := (&claimFlags{}).claim(); none != nil || err != nil {
		t.Errorf("no flags gave %+v, %v", none, err)
	}
	for words, f := range map[string]claimFlags{
		"NAME=@FILE":          {secrets: []string{"TOKEN=s3cret"}},
		"cannot read --file":  {files: []string{dir + "/absent:/etc/x"}},
		"with an absolute":    {files: []string{job + ":etc/x"}},
		"is no text":          {files: []string{binary + ":/etc/x"}},
		"cannot read --secre": {secrets: []string{"A=@" + dir + "/absent"}},
	} {
		if _, err := f.claim(); err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: %v, want %q", f, err, words)
		}
	}
}
