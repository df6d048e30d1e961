package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// usageError is a command line that cannot be meant; its text says what to type instead.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// exitError ends with a code after everything has been said, as a guest's command does.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// hintError is an error with the line that says how to go on.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

func exitCode(err error) int {
	var usage *usageError
	var exit *exitError
	var refused *api.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage):
		return api.CodeInvalid.Exit()
	case errors.Is(err, context.Canceled):
		return 1
	case errors.As(err, &refused):
		return refused.Code.Exit()
	}
	return 1
}

// reportError says an error: one line with a mark that says what to change, then what belongs to it, indented.
func (a *app) reportError(err error) {
	var exit *exitError
	if errors.As(err, &exit) {
		return
	}
	var usage *usageError
	var refused *api.Error
	var silent *client.UnreachableError
	text, details := err.Error(), []string(nil)
	switch {
	case errors.As(err, &usage):
		text = usage.text
	case errors.Is(err, context.Canceled):
		text = "interrupted"
	case errors.As(err, &silent):
		text = silentText(silent)
	case errors.As(err, &refused):
		text = refusedText(err, refused)
		if line := reasonWords(refused.Reasons); line != "" {
			details = append(details, line)
		}
		if refused.RetryAfterSecs > 1 {
			details = append(details, fmt.Sprintf("try again in %ds", refused.RetryAfterSecs))
		}
		if refused.RequestID != "" && (a.verbose || a.output == outputWide) {
			details = append(details, "request id "+refused.RequestID)
		}
	case errors.Is(err, context.DeadlineExceeded):
		text += "; try again"
	}
	var hint *hintError
	if errors.As(err, &hint) && hint.hint != "" {
		details = append(details, hint.hint)
	}
	fmt.Fprintln(a.env.Err, a.errPaint.bad("✗")+" "+oneLine(text))
	for _, d := range details {
		fmt.Fprintln(a.env.Err, "  "+oneLine(d))
	}
}

// silentText says that nobody answered, for any reader: what it may mean for the command is the hint's to say.
func silentText(e *client.UnreachableError) string {
	return fmt.Sprintf("no answer from %s: %v", strings.Join(e.Tried, ", "), e.Err)
}

// refusedText is what the server said, after the words that wrap it and without the code, which the exit code and
// the sentence already carry.
func refusedText(err error, refused *api.Error) string {
	detail := refused.Detail
	if detail == "" {
		detail = strings.ToLower(refused.Code.Title())
	}
	return strings.Replace(err.Error(), refused.Error(), detail, 1)
}

// oneLine keeps what servers and guests wrote from breaking the line or steering the terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.TrimRight(s, " \r\n"))
}

// reasonWords shows why hosts were ruled out, most frequent first: "3 hosts: label; 1: memory".
func reasonWords(reasons map[string]int) string {
	keys := slices.SortedFunc(maps.Keys(reasons), func(x, y string) int {
		if reasons[x] != reasons[y] {
			return reasons[y] - reasons[x]
		}
		return strings.Compare(x, y)
	})
	var out []string
	for i, k := range keys {
		n := fmt.Sprint(reasons[k])
		if i == 0 {
			n = count(reasons[k], "host")
		}
		out = append(out, n+": "+strings.ReplaceAll(k, "_", " "))
	}
	return strings.Join(out, "; ")
}
