//go:build !chaos

package main

import "github.com/fluxvm/fluxvm/central"

// underTest changes nothing: a clock that can be set, and snapshots as often as one likes, are in builds with -tags chaos
// only.
func underTest(*central.Config) error { return nil }
