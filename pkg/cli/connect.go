package cli

import (
	"cmp"
	"os"
	"strings"

	"github.com/fluxvm/fluxvm/pkg/client"
)

// fleet gives a client of the fleet API: the context named by --context, else the environment, else the current
// context, else a fleet on this host.
func (a *app) fleet() (*client.Client, error) {
	cfg, err := a.clientConfig(client.EnvFleetURL, func(c savedContext) string { return c.FleetURL })
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, usagef("%v", err)
	}
	return c, nil
}

// host gives a client of one host's API, chosen as fleet chooses.
func (a *app) host() (*client.Host, error) {
	cfg, err := a.clientConfig(client.EnvHostURL, func(c savedContext) string { return c.HostURL })
	if err != nil {
		return nil, err
	}
	h, err := client.NewHost(cfg)
	if err != nil {
		return nil, usagef("%v", err)
	}
	return h, nil
}

// clientConfig decides where to go and with which token. A context's token only ever goes to that context's
// addresses: naming another address in the environment must not send it there.
func (a *app) clientConfig(urlVariable string, urlOf func(savedContext) string) (client.Config, error) {
	cfg := client.Config{UserAgent: "fluxctl/" + a.env.Version}
	var err error
	fromEnv := a.env.Getenv(urlVariable)
	var saved savedContext
	if a.contextName != "" || fromEnv == "" {
		if saved, err = a.chosenContext(); err != nil {
			return cfg, err
		}
	}
	if a.contextName != "" && urlOf(saved) == "" {
		return cfg, usagef("context %q has no address for this; add one: fluxctl context add %s --help", a.contextName, a.contextName)
	}
	tokenFile, caCert := saved.TokenFile, saved.CACert
	cfg.Endpoints, cfg.Token = client.SplitEndpoints(urlOf(saved)), saved.Token
	if a.contextName == "" {
		if fromEnv != "" {
			cfg.Endpoints = client.SplitEndpoints(fromEnv)
		}
		if len(cfg.Endpoints) == 0 { // the default address is not the context's
			cfg.Token, tokenFile = "", ""
		}
		if token, file := a.env.Getenv(client.EnvToken), a.env.Getenv(client.EnvTokenFile); token != "" || file != "" {
			cfg.Token, tokenFile = token, file
		}
		if ca := a.env.Getenv(client.EnvCACert); ca != "" {
			caCert = ca
		}
	}
	if cfg.Token == "" && tokenFile != "" {
		raw, err := os.ReadFile(tokenFile)
		if err != nil {
			return cfg, usagef("cannot read the token: %v; check %s or the context", err, client.EnvTokenFile)
		}
		cfg.Token = strings.TrimSpace(string(raw))
	}
	if caCert = cmp.Or(a.caFile, caCert); caCert != "" {
		if cfg.CACertPEM, err = client.ReadCACert(caCert); err != nil {
			return cfg, usagef("%v; check --ca, %s or the context", err, client.EnvCACert)
		}
	}
	cfg.CertPEM, cfg.KeyPEM, err = a.clientPair()
	return cfg, err
}
