package node

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// identity is who the node is: both parts are made at the first start and live as long as the data directory.
type identity struct {
	uuid       string
	credential string // the node's own secret: it shows it to central, and central shows it back
}

const credentialPrefix = "fvn_"

func openIdentity(dir string) (identity, error) {
	id, err := keptText(filepath.Join(dir, "uuid"), uuid.NewString())
	if err != nil {
		return identity{}, err
	}
	if err := api.CheckUUID("uuid", id); err != nil {
		return identity{}, fmt.Errorf("%s: %w; restore the file, or remove it to make this a new node", filepath.Join(dir, "uuid"), err)
	}
	secret := make([]byte, 32)
	rand.Read(secret)
	credential, err := keptText(filepath.Join(dir, "credential"), credentialPrefix+base64.RawURLEncoding.EncodeToString(secret))
	if err != nil {
		return identity{}, err
	}
	if !strings.HasPrefix(credential, credentialPrefix) || len(credential) < len(credentialPrefix)+32 {
		return identity{}, fmt.Errorf("%s is damaged: restore it, or remove it and join again with a token", filepath.Join(dir, "credential"))
	}
	return identity{uuid: id, credential: credential}, nil
}

// keptText reads a small file, or writes it with the text when there is none. The file is whole or absent, also
// after a power cut.
func keptText(path, text string) (string, error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading the node's identity: %w", err)
	}
	if err := writeWhole(path, text+"\n"); err != nil {
		return "", fmt.Errorf("writing the node's identity: %w", err)
	}
	return text, nil
}

func writeWhole(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
