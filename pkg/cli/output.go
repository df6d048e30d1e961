package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/fatih/color"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// The forms of output.
const (
	outputTable = "table"
	outputWide  = "wide"
	outputJSON  = "json"
	outputCSV   = "csv" // of commands that are annotated with it
)

// output remembers that Out failed, so that a full disk is an error of every command and not of those that look.
type output struct {
	to     io.Writer
	failed error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil {
		err = fmt.Errorf("writing the output: %w", err)
		o.failed = cmp.Or(o.failed, err)
	}
	return n, err
}

// paint colours words for one stream, or leaves them as they are.
type paint struct{ on bool }

func (p paint) with(s string, attrs ...color.Attribute) string {
	if !p.on || s == "" {
		return s
	}
	c := color.New(attrs...)
	c.EnableColor()
	return c.Sprint(s)
}

func (p paint) good(s string) string  { return p.with(s, color.FgGreen) }
func (p paint) bad(s string) string   { return p.with(s, color.FgRed) }
func (p paint) warn(s string) string  { return p.with(s, color.FgYellow) }
func (p paint) faint(s string) string { return p.with(s, color.Faint) }

// state colours a state by what it means for the person reading.
func (p paint) state(s string) string {
	switch s {
	case "running", "ready", "healthy", "leader", "ok", "active", "done":
		return p.good(s)
	case "failed", "lost", "unreachable", "unhealthy", "refused", "scrub_failed":
		return p.bad(s)
	case "placed", "booting", "filling", "backing_off", "suspect", "unknown", "deleting", "cordoned", "draining", "pending", "ending", "scrubbing":
		return p.warn(s)
	case "stopped", "paused", "ended":
		return p.faint(s)
	}
	return s
}

// done says what happened: a sentence with a mark, then details, indented.
func (a *app) done(sentence string, details ...string) {
	fmt.Fprintln(a.env.Out, a.paint.good("✓")+" "+oneLine(sentence))
	a.details(details...)
}

// trouble points at something that needs a look without being an error of this command.
func (a *app) trouble(sentence string) {
	fmt.Fprintln(a.env.Out, a.paint.warn("!")+" "+oneLine(sentence))
}

func (a *app) details(lines ...string) {
	for _, l := range lines {
		if l != "" {
			fmt.Fprintln(a.env.Out, "  "+oneLine(l))
		}
	}
}

// note goes beside the output, where a redirection of it does not catch it.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.env.Err, oneLine(fmt.Sprintf(format, args...)))
}

// json writes the API's own object, and says whether JSON was asked for at all.
func (a *app) json(v any) (bool, error) {
	if a.output != outputJSON {
		return false, nil
	}
	enc := json.NewEncoder(a.env.Out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return true, enc.Encode(v)
}

// grid is a table; wide columns are shown with -o wide only.
type grid struct {
	a    *app
	head table.Row
	wide table.Row
	rows []table.Row
}

func (a *app) grid(columns ...string) *grid {
	g := &grid{a: a}
	for _, c := range columns {
		g.head = append(g.head, c)
	}
	return g
}

func (g *grid) wider(columns ...string) *grid {
	for _, c := range columns {
		g.wide = append(g.wide, c)
	}
	return g
}

// row adds one row: the cells of the plain columns, then those of the wide ones.
func (g *grid) row(cells ...string) {
	row := make(table.Row, 0, len(cells))
	for i, c := range cells {
		c = cmp.Or(oneLine(c), "-")
		if i < len(g.head) && isStateColumn(g.head[i]) {
			c = g.a.paint.state(c)
		}
		row = append(row, c)
	}
	g.rows = append(g.rows, row)
}

func isStateColumn(head any) bool { return head == "STATE" || head == "HEALTH" || head == "OUTCOME" }

func (g *grid) print() {
	head, width := g.head, len(g.head)
	if g.a.output == outputWide {
		head = append(append(table.Row{}, g.head...), g.wide...)
		width = len(head)
	}
	t := table.NewWriter()
	style := table.StyleDefault
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header, style.Format.HeaderAlign = text.FormatDefault, text.AlignLeft
	t.SetStyle(style)
	t.AppendHeader(head)
	for _, r := range g.rows {
		t.AppendRow(r[:min(width, len(r))])
	}
	for line := range strings.Lines(t.Render()) {
		fmt.Fprintln(g.a.env.Out, strings.TrimRight(line, " \n")) // the last column is padded too
	}
}

// field is one line of an object shown on its own.
type field struct{ name, value string }

// fields shows an object: its headline, then a line for each field that has a value.
func (a *app) fields(headline string, fields ...field) {
	fmt.Fprintln(a.env.Out, oneLine(headline))
	longest := 0
	for _, f := range fields {
		if f.value != "" {
			longest = max(longest, len(f.name))
		}
	}
	for _, f := range fields {
		if f.value != "" {
			value := oneLine(f.value)
			if f.name == "state" {
				value = a.paint.state(value)
			}
			fmt.Fprintf(a.env.Out, "  %-*s  %s\n", longest, f.name, value)
		}
	}
}
