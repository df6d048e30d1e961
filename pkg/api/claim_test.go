package api

import (
	"errors"
	"strings"
	"testing"
)

func TestAClaimIsHeldToItsLimitsWithoutRepeatingAValue(t *testing.T) {
	const secret = "hunter2-\x00"
	many := map[string]string{}
	for i := range 65 {
		many[strings.Repeat("A", i+1)] = "v"
	}
	for name, tt := range map[string]struct {
		claim Claim
		field string // of the refusal; empty: taken
	}{
		"all of it": {claim: Claim{Hostname: "build-42.lab", Env: map[string]string{"STAGE": "a b'c\n", "_x9": ""}, Secrets: map[string]string{"TOKEN": "x\x00y", "id_rsa.pub": ""},
			Files: []ClaimFile{{Path: "/etc/job.json", Content: "{}", Mode: "0600"}, {Path: "/a"}}}},
		"nothing":               {},
		"hostname with a space": {Claim{Hostname: "a b"}, "claim.hostname"},
		"hostname of dots":      {Claim{Hostname: "a..b"}, "claim.hostname"},
		"hostname that ends so": {Claim{Hostname: "a-"}, "claim.hostname"},
		"long hostname":         {Claim{Hostname: strings.Repeat("a", 64)}, "claim.hostname"},
		"variable with a digit": {Claim{Env: map[string]string{"9A": secret}}, "claim.env"},
		"variable with =":       {Claim{Env: map[string]string{"A=B": secret}}, "claim.env"},
		"zero byte":             {Claim{Env: map[string]string{"A": secret}}, "claim.env"},
		"many variables":        {Claim{Env: many}, "claim.env"},
		"secret with a path":    {Claim{Secrets: map[string]string{"../x": secret}}, "claim.secrets"},
		"secret named .":        {Claim{Secrets: map[string]string{".x": secret}}, "claim.secrets"},
		"large secrets":         {Claim{Secrets: map[string]string{"A": strings.Repeat("x", MaxSecretsBytes+1)}}, "claim.secrets"},
		"large files":           {Claim{Files: []ClaimFile{{Path: "/a", Content: strings.Repeat("x", MaxClaimBytes)}}}, "claim"},
		"relative path":         {Claim{Files: []ClaimFile{{Path: "etc/x"}}}, "claim.files"},
		"path that climbs":      {Claim{Files: []ClaimFile{{Path: "/etc/../x"}}}, "claim.files"},
		"the root":              {Claim{Files: []ClaimFile{{Path: "/"}}}, "claim.files"},
		"mode in words":         {Claim{Files: []ClaimFile{{Path: "/a", Mode: "rw"}}}, "claim.files"},
		"setuid":                {Claim{Files: []ClaimFile{{Path: "/a", Mode: "4755"}}}, "claim.files"},
	} {
		err := tt.claim.Check()
		var refused *Error
		switch {
		case tt.field == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.field != "" && (!errors.As(err, &refused) || refused.Field != tt.field):
			t.Errorf("%s: got %v, want a refusal of %s", name, err, tt.field)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: the refusal %v repeats the value", name, err)
		}
	}
	if err := (*Claim)(nil).Check(); err != nil {
		t.Error(err)
	}
}

func TestACopyWithoutSecretsKeepsTheirNames(t *testing.T) {
	c := Claim{Hostname: "h", Secrets: map[string]string{"B": "2", "A": "1"}}
	got := c.WithoutSecrets()
	if got.Hostname != "h" || len(got.Secrets) != 2 || got.Secrets["A"] != "" || got.Secrets["B"] != "" || c.Secrets["A"] != "1" {
		t.Errorf("got %+v of %+v", got, c)
	}
	if names := c.SecretNames(); strings.Join(names, ",") != "A,B" {
		t.Errorf("got names %v", names)
	}
	if (ClaimFile{}).Permissions() != 0o644 || (ClaimFile{Mode: "0"}).Permissions() != 0 || (ClaimFile{Mode: "0750"}).Permissions() != 0o750 {
		t.Error("permissions are not those of the mode")
	}
}
