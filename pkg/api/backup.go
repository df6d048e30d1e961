package api

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// BackupFormat begins the names of the forms of a backup.
const BackupFormat = "fluxvm-snapshot-"

// Backup is the first line of a backup: of which cluster it is, and as of when.
type Backup struct {
	Format    string `json:"format"`
	ClusterID string `json:"cluster_id"`
	Epoch     uint64 `json:"epoch"`
	Index     uint64 `json:"index"`
	Time      Time   `json:"time"`
}

// ReadBackup reads a backup to its end and holds it to its checksum, the SHA-256 of all lines before the last.
func ReadBackup(r io.Reader) (head Backup, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	sum := sha256.New()
	var last []byte
	for n := 0; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if len(line) > 0 {
				return head, errors.New("it ends within a line: the backup is incomplete")
			}
			break
		}
		if err != nil {
			return head, fmt.Errorf("reading the backup: %w", err)
		}
		if n == 0 {
			if json.Unmarshal(line, &head) != nil || !strings.HasPrefix(head.Format, BackupFormat) {
				return head, errors.New("it is no backup of a FluxVM cluster: its first line says something else")
			}
		}
		sum.Write(last)
		last = line
	}
	if string(bytes.TrimSpace(last)) != hex.EncodeToString(sum.Sum(nil)) {
		return head, errors.New("its checksum does not match: the backup is cut short or damaged")
	}
	return head, nil
}
