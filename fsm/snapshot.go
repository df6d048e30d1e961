package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// snapshotFormat is the first word of every snapshot.
const snapshotFormat = "fluxvm-snapshot-1"

// Header begins a snapshot. The rows follow, a line each, in the order of tables and keys, and a last line holds
// the SHA-256 of all before it, so that a cut or damaged snapshot is never taken for a whole one.
type Header struct {
	Format    string   `json:"format"`
	ClusterID string   `json:"cluster_id"`
	Epoch     uint64   `json:"epoch"`
	Index     uint64   `json:"index"`
	Time      api.Time `json:"time"`
}

// line is one row of a snapshot.
type line struct {
	Table string          `json:"t"`
	Row   json.RawMessage `json:"r"`
}

// WriteTo writes the view as a snapshot. Equal states give equal bytes.
func (v View) WriteTo(w io.Writer) (int64, error) {
	sum := sha256.New()
	out := &counter{w: bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)}
	m := v.Meta()
	if err := out.json(Header{snapshotFormat, m.ClusterID, m.Epoch, m.Index, m.Now}); err != nil {
		return out.n, err
	}
	for _, part := range parts() {
		if err := part.write(v, out); err != nil {
			return out.n, fmt.Errorf("writing table %s: %w", part.name, err)
		}
	}
	if err := out.w.Flush(); err != nil {
		return out.n, err
	}
	n, err := io.WriteString(w, hex.EncodeToString(sum.Sum(nil))+"\n")
	return out.n + int64(n), err
}

type counter struct {
	w *bufio.Writer
	n int64
}

func (c *counter) json(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	n, err := c.w.Write(append(raw, '\n'))
	c.n += int64(n)
	return err
}

// part is a table as a snapshot knows it.
type part struct {
	name  string
	write func(View, *counter) error
	read  func(*tx, json.RawMessage) error
}

// parts are the stored tables in the order of a snapshot. What is derived is not among them.
func parts() []part {
	return []part{
		partOf("meta", func(s *tables) *table[Meta] { return s.meta }),
		partOf("image", func(s *tables) *table[Image] { return s.images }),
		partOf("node", func(s *tables) *table[Node] { return s.nodes }),
		partOf("pool", func(s *tables) *table[Pool] { return s.pools }),
		partOf("claims", func(s *tables) *table[ClaimStat] { return s.claims }),
		partOf("vm", func(s *tables) *table[VM] { return s.vms }),
		partOf("operation", func(s *tables) *table[Operation] { return s.operations }),
		partOf("activity", func(s *tables) *table[Activity] { return s.activity }),
		partOf("join", func(s *tables) *table[JoinToken] { return s.joins }),
		partOf("tenant", func(s *tables) *table[Tenant] { return s.tenants }),
		partOf("key", func(s *tables) *table[Key] { return s.keys }),
		partOf("policy", func(s *tables) *table[Policy] { return s.policy }),
		partOf("prices", func(s *tables) *table[Prices] { return s.prices }),
		partOf("lease", func(s *tables) *table[Lease] { return s.leases }),
		partOf("ledger", func(s *tables) *table[LedgerRow] { return s.ledger }),
	}
}

func partOf[T any](name string, of func(*tables) *table[T]) part {
	return part{
		name: name,
		write: func(v View, out *counter) error {
			for row := range of(v.tables).each(byID, "") {
				raw, err := json.Marshal(row)
				if err != nil {
					return err
				}
				if err := out.json(line{name, raw}); err != nil {
					return err
				}
			}
			return nil
		},
		read: func(t *tx, raw json.RawMessage) error {
			row := new(T)
			if err := json.Unmarshal(raw, row); err != nil {
				return err
			}
			of(t.tables).put(row)
			if vm, ok := any(row).(*VM); ok {
				t.use(vm, +1)
			}
			t.journal.empty() // nothing of it is undone by itself
			return nil
		},
	}
}

// Restore replaces the state by a snapshot. It is checked as a whole before anything is replaced; readers of the
// old state are told by View.Abandoned.
func (s *State) Restore(r io.Reader) error {
	w, index, err := read(r)
	if err != nil {
		return fmt.Errorf("restoring a snapshot: %w", err)
	}
	s.events.reset(index)
	s.touched.reset(index)
	s.replace(w)
	return nil
}

func read(r io.Reader) (*tables, uint64, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	sum := sha256.New()
	first, err := nextLine(in, sum)
	if err != nil {
		return nil, 0, err
	}
	var head Header
	if err := json.Unmarshal(first, &head); err != nil || head.Format != snapshotFormat {
		return nil, 0, fmt.Errorf("this is no snapshot of form %s", snapshotFormat)
	}
	t := &tx{View: View{&published{tables: newTables()}}}
	readers := parts()
	for {
		before := sum.Sum(nil)
		raw, err := nextLine(in, sum)
		if err != nil {
			return nil, 0, err
		}
		if raw[0] != '{' {
			if string(raw) != hex.EncodeToString(before) {
				return nil, 0, errors.New("the checksum at its end does not match: the snapshot is damaged")
			}
			if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
				return nil, 0, errors.New("more follows its checksum: the snapshot is damaged")
			}
			break
		}
		if err := t.readRow(readers, raw); err != nil {
			return nil, 0, err
		}
	}
	if m := t.Meta(); m.ClusterID != head.ClusterID || m.Index != head.Index {
		return nil, 0, errors.New("its header contradicts its rows")
	}
	return t.tables, head.Index, nil
}

func (t *tx) readRow(readers []part, raw []byte) error {
	var l line
	if err := json.Unmarshal(raw, &l); err != nil {
		return fmt.Errorf("a row cannot be read: %w", err)
	}
	for _, p := range readers {
		if p.name == l.Table {
			if err := p.read(t, l.Row); err != nil {
				return fmt.Errorf("a row of table %s cannot be read: %w", l.Table, err)
			}
			return nil
		}
	}
	return fmt.Errorf("%w: it has a table %s", ErrUpgrade, l.Table)
}

// nextLine reads one line without its end and adds it to the sum.
func nextLine(in *bufio.Reader, sum hash.Hash) ([]byte, error) {
	raw, err := in.ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it ends too early: the snapshot is incomplete")
	}
	if err != nil {
		return nil, err
	}
	sum.Write(raw)
	raw = bytes.TrimSuffix(raw, []byte("\n"))
	if len(raw) == 0 {
		return nil, errors.New("it holds an empty line: the snapshot is damaged")
	}
	return raw, nil
}

// Hash sums up the view: equal at equal index on every replica.
func (v View) Hash() (string, error) {
	sum := sha256.New()
	if _, err := v.WriteTo(sum); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
