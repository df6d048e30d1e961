package chaos

import (
	"io"
	"time"
)

// Config is what a campaign is made of.
type Config struct {
	Agent    string        // the program fluxvm-agent, built with -tags chaos
	Dir      string        // an empty directory for data and logs
	Duration time.Duration // of the faults
	Seed     uint64
	Replicas int // 3 or 5
	Hosts    int
	Faults   []string  // names of those to make; empty: all
	Out      io.Writer // what happens
	// Impatient ends the campaign at the first violation.
	Impatient bool
}
