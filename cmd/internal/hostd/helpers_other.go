//go:build !darwin

package hostd

import "github.com/spf13/cobra"

// Helpers are the hidden commands by which a driver of this host starts processes of its own.
func Helpers() []*cobra.Command { return nil }
