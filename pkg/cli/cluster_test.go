package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// aBackup is a small one with a right checksum.
func aBackup() string {
	text := `{"format":"` + api.BackupFormat + `1","cluster_id":"c0ffee","epoch":3,"index":1042,"time":"2026-11-29T11:00:00Z"}` + "\n" + `{"t":"meta","r":{}}` + "\n"
	sum := sha256.Sum256([]byte(text))
	return text + hex.EncodeToString(sum[:]) + "\n"
}

// withBackup is a fleet that gives out what backup holds at the time.
func withBackup(backup *string) answers {
	a := wholeFleet()
	a["POST /fleet/cluster/snapshot"] = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set(api.HeaderIndex, "1042")
		_, _ = io.WriteString(w, *backup)
	}
	a["POST /fleet/cluster/restore"] = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(api.HeaderIndex, "1042")
		_ = json.NewEncoder(w).Encode(api.Backup{Format: api.BackupFormat + "1", ClusterID: "c0ffee", Epoch: 1764417600, Index: 1042, Time: ago(0)})
	}
	a["POST /fleet/cluster/transfer"] = nil
	a["DELETE /fleet/cluster/replicas/{name}"] = nil
	return a
}

func TestClusterVerbsSayWhatTheyDid(t *testing.T) {
	backup := aBackup()
	f := newFake(t, withBackup(&backup))
	for line, want := range map[string]string{
		"cluster transfer":               said("✓ central-2 leads now", "  term 4, index 1042"),
		"cluster transfer central-2":     said("✓ central-2 leads now", "  term 4, index 1042"),
		"cluster remove central-3 --yes": said("✓ Removed central-3; the cluster has 3 replicas now", "  term 4, index 1042"),
	} {
		w := newWorld(t, f)
		if code := w.run(line); code != 0 || w.out.String() != want {
			t.Errorf("%s: exit %d, got %s%s, want %s", line, code, &w.out, &w.err, want)
		}
	}
	if removed := f.requests(http.MethodDelete); len(removed) != 1 || removed[0].path != "/fleet/cluster/replicas/central-3" {
		t.Errorf("deletes: %+v", removed)
	}
	bodies := map[string]bool{}
	for _, s := range f.requests(http.MethodPost) {
		bodies[s.body] = true
	}
	if !bodies[`{"to":"central-2"}`] || !bodies[`{}`] {
		t.Errorf("transfers asked for: %v", bodies)
	}
}

func TestRemovingAReplicaAsksFirst(t *testing.T) {
	backup := aBackup()
	f := newFake(t, withBackup(&backup))
	w := newWorld(t, f)
	if code := w.run("cluster remove central-3"); code != 2 || !strings.Contains(w.err.String(), "--yes") {
		t.Errorf("where nobody can be asked: exit %d, %s, want a usage error that names --yes", code, &w.err)
	}
	w = newWorld(t, f)
	w.terminal, w.in = true, "n\n"
	if code := w.run("cluster remove central-3"); code == 0 || !strings.Contains(w.out.String()+w.err.String(), "Take replica central-3 out of the cluster for good?") {
		t.Errorf("after no: exit %d, %s%s", code, &w.out, &w.err)
	}
	if n := len(f.requests(http.MethodDelete)); n != 0 {
		t.Errorf("%d replicas were removed", n)
	}
}

func TestABackupIsWholeOrNotThere(t *testing.T) {
	backup := aBackup()
	f := newFake(t, withBackup(&backup))
	w := newWorld(t, f)
	dir := t.TempDir()
	file := filepath.Join(dir, "fleet.snapshot")
	if code := w.run("cluster backup '" + file + "'"); code != 0 || !strings.Contains(w.out.String(), "✓ Saved cluster c0ffee") || !strings.Contains(w.out.String(), "index 1042, epoch 3") {
		t.Fatalf("exit %d: %s%s", code, &w.out, &w.err)
	}
	saved, err := os.ReadFile(file)
	if err != nil || string(saved) != backup {
		t.Errorf("saved %q, %v", saved, err)
	}
	whole := backup
	for name, damaged := range map[string]string{"cut": whole[:len(whole)-70], "changed": strings.Replace(whole, "meta", "mate", 1), "something else": "hello\n"} {
		backup = damaged
		other := filepath.Join(dir, "other")
		if code := w.run("cluster backup '" + other + "'"); code != 1 || !strings.Contains(w.err.String(), "did not arrive whole") {
			t.Errorf("%s: exit %d, %s", name, code, &w.err)
		}
		w.run("cluster backup '" + file + "'") // does not harm the good one
		if now, err := os.ReadFile(file); err != nil || string(now) != whole {
			t.Errorf("%s: the good backup is %q now, %v", name, now, err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestARestoreIsCheckedAndConfirmedBeforeItIsSent(t *testing.T) {
	backup := aBackup()
	f := newFake(t, withBackup(&backup))
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	for path, text := range map[string]string{good: backup, bad: backup[:len(backup)-9]} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"cluster restore '" + bad + "' --yes":          "the backup is incomplete",
		"cluster restore '" + good + "'":               "--yes",
		"cluster restore '" + dir + "/no' --yes":       "no such file",
		"cluster restore":                              "FILE",
		"cluster restore '" + good + "' '" + bad + "'": "has no use for",
	} {
		w := newWorld(t, f)
		if code := w.run(line); code == 0 || !strings.Contains(w.err.String(), want) {
			t.Errorf("%s: exit %d, %s, want %q", line, code, &w.err, want)
		}
	}
	if sent := f.requests(http.MethodPost); len(sent) != 0 {
		t.Fatalf("sent all the same: %+v", sent)
	}
	w := newWorld(t, f)
	if code := w.run("cluster restore '" + good + "' --yes"); code != 0 {
		t.Fatalf("exit %d: %s", code, &w.err)
	}
	want := said("✓ Restored cluster c0ffee", "  index 1042, now in epoch 1764417600; hosts are taken over as they report: fluxctl fleet nodes")
	if diff := cmp.Diff(want, w.out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if sent := f.requests(http.MethodPost); len(sent) != 1 || sent[0].body != backup {
		t.Errorf("sent %+v, want the backup's bytes once", sent)
	}
}

func TestBackupsHeadComesAsJSON(t *testing.T) {
	backup := aBackup()
	w := newWorld(t, newFake(t, withBackup(&backup)))
	var head api.Backup
	if code := w.run("cluster backup '" + filepath.Join(t.TempDir(), "b") + "' -o json"); code != 0 || json.Unmarshal(w.out.Bytes(), &head) != nil || head.ClusterID != "c0ffee" || head.Index != 1042 {
		t.Errorf("exit %d: %s%s", code, &w.out, &w.err)
	}
}

// replicaOf answers as one replica of a cluster of these, with a sum of its own.
func replicaOf(t *testing.T, k api.Cluster, sum *api.Checksum) *fakeAPI {
	return newFake(t, answers{
		"GET /fleet/cluster": k,
		"GET /fleet/cluster/checksum": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set(api.HeaderIndex, "1042")
			_ = json.NewEncoder(w).Encode(sum)
		},
	})
}

func TestChecksumComparesEveryReplica(t *testing.T) {
	k := threeReplicas()
	k.Replicas = k.Replicas[:2]
	one := api.Checksum{Name: "central-1", Index: 1042, SHA256: strings.Repeat("a", 64)}
	two := api.Checksum{Name: "central-2", Index: 1042, SHA256: strings.Repeat("a", 64)}
	f, g := replicaOf(t, k, &one), replicaOf(t, k, &two)
	w := newWorld(t, nil)
	w.vars["FLUXVM_FLEET_URL"] = f.URL + "," + g.URL
	if code := w.run("cluster checksum"); code != 0 || w.out.String() != said("✓ 2 replicas have one state", "  index 1042, sha256 "+one.SHA256) {
		t.Errorf("equal: exit %d, %s%s", code, &w.out, &w.err)
	}
	if code := w.run("cluster checksum -o json"); code != 0 || strings.Count(w.out.String(), one.SHA256) != 2 {
		t.Errorf("as JSON: exit %d, %s%s", code, &w.out, &w.err)
	}
	two.SHA256 = strings.Repeat("b", 64)
	if code := w.run("cluster checksum"); code != 1 || !strings.Contains(w.out.String(), two.SHA256) || !strings.Contains(w.err.String(), "differ at index 1042") {
		t.Errorf("different: exit %d, %s%s", code, &w.out, &w.err)
	}
	w.vars["FLUXVM_FLEET_URL"] = f.URL
	if code := w.run("cluster checksum"); code != 1 || !strings.Contains(w.err.String(), "central-2 gave none") {
		t.Errorf("one that is not asked: exit %d, %s%s", code, &w.out, &w.err)
	}
}

func TestClusterStatusWarnsOfWhatEndsOrFillsUp(t *testing.T) {
	k := threeReplicas()
	for i, days := range []int{29, 31, -1} {
		k.Replicas[i].CertificateExpiresAt = api.TimeOf(noon.AddDate(0, 0, days))
	}
	k.Replicas[1].DiskLow = true
	w := newWorld(t, newFake(t, answers{"GET /fleet/cluster": k}))
	if code := w.run("cluster status -o wide"); code != 0 {
		t.Fatalf("exit %d: %s", code, &w.err)
	}
	for _, want := range []string{"certificate of central-1 ends", "fluxctl tls cert replica central-1", "certificate of central-3 ends", "disk of central-2 is nearly full"} {
		if !strings.Contains(w.err.String(), want) {
			t.Errorf("%q is not in %s", want, &w.err)
		}
	}
	if strings.Contains(w.err.String(), "certificate of central-2") || !strings.Contains(w.out.String(), "disk-low") || !strings.Contains(w.out.String(), "CERTIFICATE-UNTIL") {
		t.Errorf("got %s%s", &w.out, &w.err)
	}
}

func TestClusterStatusShowsWhatIsLeftWhileNobodyLeads(t *testing.T) {
	k := threeReplicas()
	k.Leader, k.Replicas[0].Healthy, k.Replicas[1].Healthy, k.Replicas[1].Role = "", false, false, "voter"
	w := newWorld(t, newFake(t, answers{"GET /fleet/cluster": func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("stale") != "true" {
			refusal := api.Errorf(api.CodeNotLeader, "the cluster has no leader that is ready").Filled("r")
			refusal.RetryAfterSecs = 60
			rw.Header().Set("Content-Type", "application/problem+json")
			rw.Header().Set("Retry-After", "60")
			rw.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(rw).Encode(refusal)
			return
		}
		rw.Header().Set(api.HeaderIndex, "1042")
		rw.Header().Set(api.HeaderLastContact, "60000")
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(k)
	}}))
	if code := w.run("cluster status"); code != 5 || !strings.Contains(w.out.String(), "! no leader, 1 of 3 replicas healthy; too few to change anything") || !strings.Contains(w.out.String(), "central-3") || !strings.Contains(w.err.String(), "what one replica sees") {
		t.Errorf("exit %d: %s%s", code, &w.out, &w.err)
	}
}
