package fsm

import (
	"encoding/binary"
	"iter"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tidwall/btree"
)

// table keeps the rows of one kind. It is either the writer's, which changes, or published, which never does.
type table[T any] struct {
	indexes []index[T]    // the first one has every row, under its identity
	changed chan struct{} // of a published table: closed when a later one has taken its place
	journal *journal      // of the writer's: what the command under way has changed; nil: published
	dirty   bool          // it was changed since it was last published
	walked  *atomic.Uint64
}

// index is one order of a table's rows. Trees are shared with whoever reads them: one that is shared is copied before
// it changes, which costs no more than the nodes on the way to the change.
type index[T any] struct {
	key    func(*T) string // no row is kept under an empty key
	many   bool            // rows may have the same key; they are in the order of their identities
	rows   *btree.Map[string, *T]
	shared bool
}

// journal holds the changes of one command, so that they can be undone.
type journal []change

type change struct {
	table    interface{ undo(old, row any) }
	old, row any // *T; nil for none
}

// undo takes all changes back, the last one first.
func (j *journal) undo() {
	for _, c := range slices.Backward(*j) {
		c.table.undo(c.old, c.row)
	}
	j.empty()
}

// empty forgets the changes: they stay. It keeps no row from being freed.
func (j *journal) empty() {
	clear(*j)
	*j = (*j)[:0]
}

// degree makes nodes of up to 15 rows: larger ones cost more to copy, smaller ones more to find.
const degree = 8

// newTable gives an empty table. walked counts the rows that walks show.
func newTable[T any](j *journal, walked *atomic.Uint64, id func(*T) string, others ...index[T]) *table[T] {
	t := &table[T]{journal: j, dirty: true, walked: walked, indexes: append([]index[T]{{key: id}}, others...)}
	for i := range t.indexes {
		t.indexes[i].rows = btree.NewMap[string, *T](degree)
	}
	return t
}

// one is an index in which each row has a key of its own; byMany one in which rows may share keys.
func one[T any](key func(*T) string) index[T] { return index[T]{key: key} }

func byMany[T any](key func(*T) string) index[T] { return index[T]{key: key, many: true} }

// byID is the number of the index by identity in each table.
const byID = 0

// find gives the row of that key, nil for none. The rows of an index by many may be found by what their keys begin with.
func (t *table[T]) find(by int, key string) *T {
	if t.indexes[by].many {
		for row := range t.each(by, key) {
			return row
		}
		return nil
	}
	row, _ := t.indexes[by].rows.Get(key)
	return row
}

// each gives the rows whose keys begin with the prefix, in order.
func (t *table[T]) each(by int, prefix string) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		t.walk(by, prefix, func(key string, row *T) bool { return strings.HasPrefix(key, prefix) && yield(row) })
	}
}

// from gives the rows that are not before the key, in order.
func (t *table[T]) from(by int, start string) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		t.walk(by, start, func(_ string, row *T) bool { return yield(row) })
	}
}

// walk shows the rows from a key on as they are now: what the walker changes meanwhile it does not meet.
func (t *table[T]) walk(by int, start string, visit func(string, *T) bool) {
	x := &t.indexes[by]
	rows := x.rows
	if t.journal != nil {
		was := x.shared
		x.shared = true
		defer func() { x.shared = was }()
	}
	shown := uint64(0)
	rows.Ascend(start, func(key string, row *T) bool { shown++; return visit(key, row) })
	t.walked.Add(shown)
}

// back gives the rows that are not after the key, the last one first. It is for published tables.
func (t *table[T]) back(by int, start string) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		shown := uint64(0)
		t.indexes[by].rows.Descend(start, func(_ string, row *T) bool { shown++; return yield(row) })
		t.walked.Add(shown)
	}
}

// put stores a row, in the place of the one of its identity.
func (t *table[T]) put(row *T) {
	c := change{table: t, row: row}
	old, ok := t.indexes[byID].rows.Get(t.indexes[byID].key(row))
	if ok {
		c.old = old
	}
	*t.journal = append(*t.journal, c)
	t.change(old, row)
}

// remove drops the row of that row's identity, if it is there.
func (t *table[T]) remove(row *T) {
	old, ok := t.indexes[byID].rows.Get(t.indexes[byID].key(row))
	if ok {
		*t.journal = append(*t.journal, change{table: t, old: old})
		t.change(old, nil)
	}
}

func (t *table[T]) undo(old, row any) {
	is, _ := row.(*T)
	was, _ := old.(*T)
	t.change(is, was)
}

func (t *table[T]) change(old, row *T) {
	t.dirty = true
	for i := range t.indexes {
		x := &t.indexes[i]
		was, is := t.keyIn(x, old), t.keyIn(x, row)
		if was == "" && is == "" {
			continue
		}
		if x.shared {
			x.rows, x.shared = x.rows.Copy(), false
		}
		if was != "" && was != is {
			x.rows.Delete(was)
		}
		if is != "" {
			x.rows.Set(is, row)
		}
	}
}

func (t *table[T]) keyIn(x *index[T], row *T) string {
	if row == nil {
		return ""
	}
	key := x.key(row)
	if key != "" && x.many {
		key += t.indexes[byID].key(row)
	}
	return key
}

// publish gives the table as it is now, to take the place of the one that was published before.
func (t *table[T]) publish(before *table[T], outdated *[]chan struct{}) *table[T] {
	if before != nil && !t.dirty {
		return before
	}
	if before != nil {
		*outdated = append(*outdated, before.changed)
	}
	t.dirty = false
	for i := range t.indexes {
		t.indexes[i].shared = true
	}
	return &table[T]{indexes: append([]index[T](nil), t.indexes...), changed: make(chan struct{}), walked: t.walked}
}

// text joins parts to a key, each ended by a zero byte: no part of a key may be mistaken for another's beginning.
func text(parts ...string) string {
	if len(parts) == 1 { // most keys
		return parts[0] + "\x00"
	}
	return strings.Join(parts, "\x00") + "\x00"
}

// number makes a key of the prefix and a number, in the order of numbers.
func number(prefix string, n uint64) string {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], n)
	return prefix + string(raw[:])
}
