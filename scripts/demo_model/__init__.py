"""Parts of ``scripts/train_demo_model.py``: corpus, chats, tokenizer and training."""
