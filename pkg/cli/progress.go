package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	quietFor  = time.Second      // what is faster needs no progress
	lineEvery = 10 * time.Second // between lines where no terminal can show one that changes
)

// during runs f and, from the second second on, shows on Err what is waited for and for how long.
func during[T any](ctx context.Context, a *app, what string, f func(context.Context) (T, error)) (T, error) {
	done := make(chan struct{})
	var shown sync.WaitGroup
	shown.Go(func() { a.showProgress(what, done) })
	v, err := f(ctx)
	close(done)
	shown.Wait()
	return v, err
}

// perform is during for what gives nothing back.
func (a *app) perform(ctx context.Context, what string, f func(context.Context) error) error {
	_, err := during(ctx, a, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

func (a *app) showProgress(what string, done <-chan struct{}) {
	started := time.Now()
	alive := a.errTerminal && a.env.Getenv("TERM") != "dumb"
	next := lineEvery
	if alive {
		next = quietFor
	}
	timer := time.NewTimer(quietFor)
	defer timer.Stop()
	for drawn := false; ; {
		select {
		case <-done:
			if drawn && alive {
				fmt.Fprint(a.env.Err, "\r\x1b[K")
			}
			return
		case <-timer.C:
			line := fmt.Sprintf("Waiting for %s … %s", oneLine(what), shortDuration(time.Since(started)))
			if alive {
				fmt.Fprint(a.env.Err, "\r\x1b[K"+line)
			} else {
				fmt.Fprintln(a.env.Err, line)
			}
			drawn = true
			timer.Reset(next)
		}
	}
}

// confirm asks before something that cannot be undone. Only a person at a terminal can be asked; anyone else says
// so beforehand with --yes.
func (a *app) confirm(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	if !a.inTerminal {
		return usagef("%s This asks first, and there is no terminal to ask on; pass --yes to go ahead", question)
	}
	fmt.Fprintf(a.env.Err, "%s [y/N] ", oneLine(question))
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be called off: an interrupt leaves it to the end of the process
		line, _ := bufio.NewReader(a.env.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.env.Err)
		return ctx.Err()
	case s := <-answer:
		if s == "y" || s == "yes" {
			return nil
		}
		a.note("Nothing was changed.")
		return &exitError{1}
	}
}
