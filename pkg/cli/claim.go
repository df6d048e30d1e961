package cli

import (
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// claimFlags are what a launch brings into its guest.
type claimFlags struct {
	hostname            string
	env, files, secrets []string
}

func (f *claimFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.hostname, "hostname", "", "`NAME` of the guest")
	flags.StringArrayVar(&f.env, "env", nil, "`NAME=VALUE` in the guest's environment; may be repeated")
	flags.StringArrayVar(&f.files, "file", nil, "copy a text file into the guest, `SOURCE:PATH[:MODE]`; may be repeated")
	flags.StringArrayVar(&f.secrets, "secret", nil, "secret for the guest, `NAME=@FILE`; never stored; may be repeated")
}

// claim is what the flags ask for; nil for nothing.
func (f *claimFlags) claim() (*api.Claim, error) {
	if f.hostname == "" && len(f.env)+len(f.files)+len(f.secrets) == 0 {
		return nil, nil
	}
	out := api.Claim{Hostname: f.hostname}
	var err error
	if out.Env, err = pairs("env", f.env); err != nil {
		return nil, err
	}
	for _, one := range f.files {
		file, err := claimFile(one)
		if err != nil {
			return nil, err
		}
		out.Files = append(out.Files, file)
	}
	for _, one := range f.secrets {
		name, path, ok := strings.Cut(one, "=@")
		if !ok || name == "" || path == "" {
			return nil, usagef("--secret takes NAME=@FILE: what stands on a command line can be read by everyone on the machine")
		}
		text, err := readText("secret", path)
		if err != nil {
			return nil, err
		}
		if out.Secrets == nil {
			out.Secrets = map[string]string{}
		}
		out.Secrets[name] = strings.TrimSuffix(text, "\n") // editors and echo end files with one
	}
	return &out, nil
}

// claimFile reads SOURCE:PATH[:MODE].
func claimFile(flag string) (api.ClaimFile, error) {
	parts := strings.Split(flag, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || !strings.HasPrefix(parts[1], "/") {
		return api.ClaimFile{}, usagef("--file takes SOURCE:PATH[:MODE] with an absolute PATH, such as job.json:/etc/job.json:0600")
	}
	content, err := readText("file", parts[0])
	file := api.ClaimFile{Path: parts[1], Content: content}
	if len(parts) == 3 {
		file.Mode = parts[2]
	}
	return file, err
}

func readText(flag, path string) (string, error) {
	raw, err := os.ReadFile(path)
	switch {
	case err != nil:
		return "", usagef("cannot read --%s: %v", flag, err)
	case !utf8.Valid(raw):
		return "", usagef("--%s %s is no text; encode it, in base64 for instance, and decode it in the guest", flag, path)
	}
	return string(raw), nil
}
