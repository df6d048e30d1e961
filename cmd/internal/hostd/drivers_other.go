//go:build !linux && !darwin

package hostd

import "github.com/hashicorp/go-hclog"

func candidates(bool, hclog.Logger) []candidate { return nil }
