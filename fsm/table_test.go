package fsm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// item is a row with a key that others may have, too.
type item struct {
	name, group string
	n           int
}

func items(j *journal) *table[item] {
	return newTable(j, &atomic.Uint64{}, func(r *item) string { return text(r.name) }, byMany(func(r *item) string {
		if r.group == "" {
			return ""
		}
		return text(r.group)
	}))
}

// holdsItems fails unless the table has just these rows, in both of its orders.
func holdsItems(r tb, its *table[item], want map[string]*item) {
	r.Helper()
	var byName, byGroup []*item
	for _, name := range slices.Sorted(maps.Keys(want)) {
		byName = append(byName, want[name])
	}
	for _, row := range byName {
		if row.group != "" {
			byGroup = append(byGroup, row)
		}
		if got := its.find(byID, text(row.name)); got != row {
			r.Fatalf("%s is found as %+v, want %+v", row.name, got, row)
		}
	}
	slices.SortStableFunc(byGroup, func(a, b *item) int { return slices.Compare([]byte(text(a.group)), []byte(text(b.group))) })
	if got := slices.Collect(its.each(1, "")); !slices.Equal(got, byGroup) {
		r.Fatalf("got %d rows by group, want %d", len(got), len(byGroup))
	}
	for _, start := range []string{"", text("i"), text("i42"), text("i7"), "\xff"} { // some there, some not
		after, found := slices.BinarySearchFunc(byName, start, func(row *item, key string) int { return strings.Compare(text(row.name), key) })
		if got := slices.Collect(its.from(byID, start)); !slices.Equal(got, byName[after:]) {
			r.Fatalf("got %d rows from %q on, want %d", len(got), start, len(byName)-after)
		}
		if found {
			after++
		}
		back := slices.Collect(its.back(byID, start))
		slices.Reverse(back)
		if !slices.Equal(back, byName[:after]) {
			r.Fatalf("got %d rows from %q back, want %d", len(back), start, after)
		}
	}
}

// What was published stays as it was whatever is written, walked over or undone later.
func TestTablesKeepWhatWasPublished(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		j := &journal{}
		work := items(j)
		now, before := map[string]*item{}, map[string]*item{} // before: when the command under way began
		type seen struct {
			table *table[item]
			rows  map[string]*item
		}
		var published []seen
		var last *table[item]
		var outdated []chan struct{}
		draw := func() *item {
			return &item{fmt.Sprint("i", rapid.IntRange(0, 99).Draw(r, "name")), rapid.SampledFrom([]string{"", "a", "b"}).Draw(r, "group"), rapid.Int().Draw(r, "n")}
		}
		r.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) {
				for range 40 {
					row := draw()
					work.put(row)
					now[row.name] = row
				}
			},
			"remove": func(*rapid.T) {
				for range 20 {
					row := draw()
					work.remove(row)
					delete(now, row.name)
				}
			},
			"change while walking": func(r *rapid.T) {
				var met []*item
				want := slices.Collect(work.each(1, text("a")))
				for row := range work.each(1, text("a")) {
					met = append(met, row)
					moved := &item{row.name, "b", row.n}
					work.put(moved)
					now[row.name] = moved
					other := draw()
					work.remove(other)
					delete(now, other.name)
					for range work.each(1, "") { // a walk within the walk
						break
					}
				}
				if !slices.Equal(met, want) {
					r.Fatalf("a walk met %d rows, want the %d that were there when it began", len(met), len(want))
				}
			},
			"undo": func(*rapid.T) {
				j.undo()
				now = maps.Clone(before)
			},
			"publish": func(r *rapid.T) {
				*j, before = nil, maps.Clone(now)
				changed, was := work.dirty, last
				last = work.publish(was, &outdated)
				if was != nil && (was == last) == changed {
					r.Fatal("a table that changed was not published, or one that did not was")
				}
				published = append(published, seen{last, maps.Clone(now)})
			},
			"": func(r *rapid.T) {
				holdsItems(r, work, now)
				for _, p := range published {
					holdsItems(r, p.table, p.rows)
				}
			},
		})
	})
}

func TestPrefixesFindWholePartsOnly(t *testing.T) {
	work := items(&journal{})
	for _, group := range []string{"a", "ab", ""} {
		work.put(&item{name: "of " + group, group: group})
	}
	if got := work.find(1, text("a")); got == nil || got.name != "of a" {
		t.Errorf("got %+v", got)
	}
	if got := slices.Collect(work.each(1, text("a"))); len(got) != 1 {
		t.Errorf("got %d rows of group a, want one", len(got))
	}
	if got := work.find(1, text("b")); got != nil {
		t.Errorf("got %+v for a group that nobody is in", got)
	}
}
