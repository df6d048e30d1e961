//go:build !linux && !darwin

package hostd

import "github.com/hashicorp/go-hclog"

func candidates(hclog.Logger) []candidate { return nil }
