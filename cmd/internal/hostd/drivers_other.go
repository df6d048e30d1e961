//go:build !linux

package hostd

func candidates() []candidate { return nil }
